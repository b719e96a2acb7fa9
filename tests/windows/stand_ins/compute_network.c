/* Stands in for computenetwork.dll (HCN) and vmcompute.dll (HNS, first version), which Wine does not have. It checks what
 * a library can check: handles, pointers, GUIDs, who frees what. host_network_service.py, a Linux program, has the state,
 * refuses what Windows documents to refuse, and makes real interfaces in the network namespace.
 */
#include <windows.h>
#include <objbase.h>
#include <stdio.h>

#define EXPORT __declspec(dllexport)
#define E_MISSING_POINTER ((HRESULT)0x80004003)
#define E_BAD_HANDLE ((HRESULT)0x80070006)

static int (CDECL *spawn)(char *const argv[], int wait);
static LONG counter;

struct handle {
    DWORD magic;
    char kind[16], id[40];
};
#define MAGIC 0x4e4348 /* HCN */

BOOL WINAPI DllMain(HINSTANCE self, DWORD reason, LPVOID reserved)
{
    (void)self, (void)reserved;
    if (reason == DLL_PROCESS_ATTACH)
        spawn = (void *)GetProcAddress(GetModuleHandleA("ntdll.dll"), "__wine_unix_spawnvp");
    return spawn != NULL;
}

static WCHAR *text_for_caller(const char *text)
{
    int count = MultiByteToWideChar(CP_UTF8, 0, text, -1, NULL, 0);
    WCHAR *copy = CoTaskMemAlloc(count * sizeof(WCHAR));

    MultiByteToWideChar(CP_UTF8, 0, text, -1, copy, count);
    return copy;
}

/* One line of the answer, without its end. */
static char *line(FILE *file, char *into, int room)
{
    if (fgets(into, room, file) == NULL)
        into[0] = '\0';
    into[strcspn(into, "\n")] = '\0';
    return into;
}

/* The program gets the call, the ID, and a file with the document; it answers with a code, a document and an error
 * record, each on a line. */
static HRESULT ask(const char *call, const char *id, const WCHAR *document, char *answer, int room, WCHAR **error)
{
    char script[512], unix_in[128], unix_out[128], in[160], out[160], record[4096], code[32];
    char *argv[] = {"/usr/bin/python3", "-IS", script, (char *)call, (char *)id, unix_in, unix_out, NULL};
    LONG number = InterlockedIncrement(&counter);
    FILE *file;

    if (GetEnvironmentVariableA("WINDLASS_STAND_IN_HNS", script, sizeof script) == 0)
        return (HRESULT)0x80070426; /* the service does not run */
    snprintf(unix_in, sizeof unix_in, "/tmp/windlass-hns.%lu.%ld.in", GetCurrentProcessId(), number);
    snprintf(unix_out, sizeof unix_out, "/tmp/windlass-hns.%lu.%ld.out", GetCurrentProcessId(), number);
    snprintf(in, sizeof in, "Z:%s", unix_in);
    snprintf(out, sizeof out, "Z:%s", unix_out);
    file = fopen(in, "wb");
    if (file == NULL)
        return E_FAIL;
    if (document != NULL) {
        int count = WideCharToMultiByte(CP_UTF8, 0, document, -1, NULL, 0, NULL, NULL);
        char *text = malloc(count);

        WideCharToMultiByte(CP_UTF8, 0, document, -1, text, count, NULL, NULL);
        fputs(text, file);
        free(text);
    }
    fclose(file);
    spawn(argv, 1);
    file = fopen(out, "rb");
    if (file == NULL) {
        remove(in);
        return E_FAIL;
    }
    line(file, code, sizeof code);
    line(file, answer, room);
    line(file, record, sizeof record);
    fclose(file);
    remove(in);
    remove(out);
    if (error != NULL)
        *error = record[0] ? text_for_caller(record) : NULL;
    return (HRESULT)strtoul(code, NULL, 16);
}

static void guid_text(const GUID *guid, char *text, size_t room)
{
    snprintf(text, room, "%08lx-%04x-%04x-%02x%02x-%02x%02x%02x%02x%02x%02x", guid->Data1, guid->Data2, guid->Data3,
             guid->Data4[0], guid->Data4[1], guid->Data4[2], guid->Data4[3], guid->Data4[4], guid->Data4[5],
             guid->Data4[6], guid->Data4[7]);
}

static HANDLE new_handle(const char *kind, const char *id)
{
    struct handle *made = calloc(1, sizeof *made);

    made->magic = MAGIC;
    snprintf(made->kind, sizeof made->kind, "%s", kind);
    snprintf(made->id, sizeof made->id, "%s", id);
    return made;
}

static struct handle *checked(HANDLE given, const char *kind)
{
    struct handle *handle = given;

    return handle != NULL && handle->magic == MAGIC && strcmp(handle->kind, kind) == 0 ? handle : NULL;
}

static char *room_for_answer(void)
{
    return calloc(1, 65536);
}

static HRESULT enumerate(const char *call, const WCHAR *query, WCHAR **result, WCHAR **error)
{
    char *answer = room_for_answer();
    HRESULT code = query == NULL || result == NULL ? E_MISSING_POINTER : ask(call, "-", query, answer, 65536, error);

    if (SUCCEEDED(code))
        *result = text_for_caller(answer);
    free(answer);
    return code;
}

static HRESULT create(const char *call, const char *kind, const GUID *id, const WCHAR *document, const char *parent,
                      HANDLE *handle, WCHAR **error)
{
    static const GUID none;
    char *answer;
    HRESULT code;

    if (id == NULL || document == NULL || handle == NULL)
        return E_MISSING_POINTER;
    if (memcmp(id, &none, sizeof none) != 0)
        return E_INVALIDARG; /* the stand-in chooses */
    answer = room_for_answer();
    code = ask(call, parent, document, answer, 65536, error);
    if (SUCCEEDED(code))
        *handle = new_handle(kind, answer);
    free(answer);
    return code;
}

static HRESULT open_item(const char *call, const char *kind, const GUID *id, HANDLE *handle, WCHAR **error)
{
    char text[40], answer[64];
    HRESULT code;

    if (id == NULL || handle == NULL)
        return E_MISSING_POINTER;
    guid_text(id, text, sizeof text);
    code = ask(call, text, NULL, answer, sizeof answer, error);
    if (SUCCEEDED(code))
        *handle = new_handle(kind, text);
    return code;
}

static HRESULT with_handle(const char *call, const char *kind, HANDLE given, const WCHAR *document, WCHAR **result,
                           WCHAR **error)
{
    struct handle *handle = checked(given, kind);
    char *answer;
    HRESULT code;

    if (handle == NULL)
        return E_BAD_HANDLE;
    if (document == NULL)
        return E_MISSING_POINTER;
    answer = room_for_answer();
    code = ask(call, handle->id, document, answer, 65536, error);
    if (SUCCEEDED(code) && result != NULL)
        *result = text_for_caller(answer);
    free(answer);
    return code;
}

static HRESULT delete_item(const char *call, const GUID *id, WCHAR **error)
{
    char text[40], answer[64];

    if (id == NULL)
        return E_MISSING_POINTER;
    guid_text(id, text, sizeof text);
    return ask(call, text, NULL, answer, sizeof answer, error);
}

#define ITEM(kind) \
    EXPORT HRESULT WINAPI HcnEnumerate##kind##s(PCWSTR query, PWSTR *found, PWSTR *error) \
    { \
        return enumerate("HcnEnumerate" #kind "s", query, found, error); \
    } \
    EXPORT HRESULT WINAPI HcnOpen##kind(const GUID *id, HANDLE *handle, PWSTR *error) \
    { \
        return open_item("HcnOpen" #kind, #kind, id, handle, error); \
    } \
    EXPORT HRESULT WINAPI HcnModify##kind(HANDLE handle, PCWSTR change, PWSTR *error) \
    { \
        return with_handle("HcnModify" #kind, #kind, handle, change, NULL, error); \
    } \
    EXPORT HRESULT WINAPI HcnQuery##kind##Properties(HANDLE handle, PCWSTR query, PWSTR *found, PWSTR *error) \
    { \
        return with_handle("HcnQuery" #kind "Properties", #kind, handle, query, found, error); \
    } \
    EXPORT HRESULT WINAPI HcnDelete##kind(const GUID *id, PWSTR *error) \
    { \
        return delete_item("HcnDelete" #kind, id, error); \
    } \
    EXPORT HRESULT WINAPI HcnClose##kind(HANDLE given) \
    { \
        struct handle *handle = checked(given, #kind); \
        if (handle == NULL) \
            return E_BAD_HANDLE; \
        handle->magic = 0; \
        free(handle); \
        return S_OK; \
    }

ITEM(Network)
ITEM(Endpoint)
ITEM(Namespace)

EXPORT HRESULT WINAPI HcnCreateNetwork(const GUID *id, PCWSTR document, HANDLE *handle, PWSTR *error)
{
    return create("HcnCreateNetwork", "Network", id, document, "-", handle, error);
}

EXPORT HRESULT WINAPI HcnCreateEndpoint(HANDLE network, const GUID *id, PCWSTR document, HANDLE *handle, PWSTR *error)
{
    struct handle *parent = checked(network, "Network");

    return parent == NULL ? E_BAD_HANDLE : create("HcnCreateEndpoint", "Endpoint", id, document, parent->id, handle, error);
}

EXPORT HRESULT WINAPI HcnCreateNamespace(const GUID *id, PCWSTR document, HANDLE *handle, PWSTR *error)
{
    return create("HcnCreateNamespace", "Namespace", id, document, "-", handle, error);
}

EXPORT HRESULT WINAPI HNSCall(PCWSTR method, PCWSTR path, PCWSTR body, PWSTR *response)
{
    char request[512];
    char *answer = room_for_answer();
    HRESULT code;

    snprintf(request, sizeof request, "%ls %ls", method, path);
    code = ask("HNSCall", request, body, answer, 65536, NULL);
    *response = SUCCEEDED(code) ? text_for_caller(answer) : NULL;
    free(answer);
    return code;
}
