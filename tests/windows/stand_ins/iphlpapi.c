/* Stands in for the writes of IP Helper, which Wine does not have. Reads go to Wine, which reads the Linux network
 * namespace that it runs in; writes are made there by `ip` and in /proc/sys. So what is written is read back from a
 * kernel, and the sizes and offsets of the caller's structures are really used.
 *
 * Refuses what Windows documents to refuse: 87 for a row that was not initialised or names no interface, 5010 for an
 * item that exists, 1168 for one that does not. An injected fault: the file C:\fault has the name of a call and a code.
 *
 * Longer than 400 lines: a DLL of Wine is built from one file, and its calls share the helpers above them.
 */
#include <winsock2.h>
#include <ws2tcpip.h>
#include <windows.h>
#include <iphlpapi.h>
#include <netioapi.h>
#include <stdarg.h>
#include <stdio.h>

#define EXPORT __declspec(dllexport)

static int (CDECL *spawn)(char *const argv[], int wait);
static HMODULE real;

BOOL WINAPI DllMain(HINSTANCE self, DWORD reason, LPVOID reserved)
{
    (void)self, (void)reserved;
    if (reason == DLL_PROCESS_ATTACH) {
        spawn = (void *)GetProcAddress(GetModuleHandleA("ntdll.dll"), "__wine_unix_spawnvp");
        real = LoadLibraryA("C:\\windows\\system32\\iphlpapi.dll");
    }
    return spawn != NULL && real != NULL;
}

/* ---- the namespace ---- */

static int shell(const char *format, ...)
{
    char command[1024];
    char *argv[] = {"/bin/sh", "-c", command, NULL};
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    return spawn(argv, 1);
}

static BOOL name_of(NET_IFINDEX index, char *name, size_t room)
{
    MIB_IF_ROW2 row = {.InterfaceIndex = index};

    if (index == 0 || ((DWORD(WINAPI *)(MIB_IF_ROW2 *))GetProcAddress(real, "GetIfEntry2"))(&row))
        return FALSE;
    return WideCharToMultiByte(CP_UTF8, 0, row.Alias, -1, name, (int)room, NULL, NULL) > 0;
}

static long number_in(const char *format, const char *name)
{
    char path[256];
    long number = -1;
    FILE *file;

    snprintf(path, sizeof path, format, name);
    file = fopen(path, "r");
    if (file != NULL) {
        if (fscanf(file, "%ld", &number) != 1)
            number = -1;
        fclose(file);
    }
    return number;
}

static const char *text_of(const SOCKADDR_INET *address, char text[INET6_ADDRSTRLEN])
{
    const void *bytes = address->si_family == AF_INET ? (const void *)&address->Ipv4.sin_addr : &address->Ipv6.sin6_addr;

    return inet_ntop(address->si_family, (void *)bytes, text, INET6_ADDRSTRLEN);
}

static BOOL is_unspecified(const SOCKADDR_INET *address)
{
    char text[INET6_ADDRSTRLEN];

    text_of(address, text);
    return strcmp(text, "0.0.0.0") == 0 || strcmp(text, "::") == 0;
}

static int version_of(const SOCKADDR_INET *address)
{
    return address->si_family == AF_INET ? 4 : 6;
}

static DWORD fault(const char *call)
{
    char name[64];
    DWORD code = 0;
    FILE *file = fopen("C:\\fault", "r");

    if (file == NULL)
        return 0;
    if (fscanf(file, "%63s %lu", name, &code) != 2 || strcmp(name, call) != 0)
        code = 0;
    fclose(file);
    return code;
}

#define REFUSE(call) do { DWORD code = fault(call); if (code) return code; } while (0)

/* The exit status of `ip`, as a code of Windows: it says 2 for whatever the kernel refuses. */
static DWORD done(int status, DWORD refused)
{
    return status == 0 ? NO_ERROR : refused;
}

/* ---- reads, as Wine has them ---- */

#define PASS_ON(name, parameters, arguments) \
    EXPORT DWORD WINAPI name parameters \
    { \
        return ((DWORD(WINAPI *) parameters)(void *)GetProcAddress(real, #name)) arguments; \
    }


/* Windows' name of an interface is its alias in Linux, if it has one: Linux names stop at 15 characters. */
static void windows_name(const char *name, WCHAR *into, int room)
{
    char path[256], alias[256] = "";
    FILE *file;

    snprintf(path, sizeof path, "Z:\\sys\\class\\net\\%s\\ifalias", name);
    file = fopen(path, "r");
    if (file != NULL) {
        if (fgets(alias, sizeof alias, file) == NULL)
            alias[0] = '\0';
        alias[strcspn(alias, "\n")] = '\0';
        fclose(file);
    }
    MultiByteToWideChar(CP_UTF8, 0, alias[0] ? alias : name, -1, into, room);
}

/* Wine 8 never forgets an interface. */
EXPORT DWORD WINAPI GetIfTable2(MIB_IF_TABLE2 **table)
{
    DWORD code = ((DWORD(WINAPI *)(MIB_IF_TABLE2 **))(void *)GetProcAddress(real, "GetIfTable2"))(table);
    ULONG kept = 0;

    for (ULONG i = 0; code == NO_ERROR && i < (*table)->NumEntries; i++) {
        const MIB_IF_ROW2 *row = &(*table)->Table[i];
        char name[64];

        WideCharToMultiByte(CP_UTF8, 0, row->Alias, -1, name, sizeof name, NULL, NULL);
        if (number_in("Z:\\sys\\class\\net\\%s\\ifindex", name) == (long)row->InterfaceIndex) {
            (*table)->Table[kept] = *row;
            windows_name(name, (*table)->Table[kept++].Alias, IF_MAX_STRING_SIZE + 1);
        }
    }
    if (code == NO_ERROR)
        (*table)->NumEntries = kept;
    return code;
}

/* ---- compartments: each interface of a Pod is in one of its own, which has the interface's number ---- */

static __thread ULONG compartment = 1;

static ULONG compartment_of(const char *name, NET_IFINDEX index)
{
    return number_in("Z:\\sys\\class\\net\\%s\\netdev_group", name) == 2 ? index : 1;
}

EXPORT NET_IF_COMPARTMENT_ID WINAPI GetCurrentThreadCompartmentId(void)
{
    return compartment;
}

EXPORT DWORD WINAPI SetCurrentThreadCompartmentId(NET_IF_COMPARTMENT_ID wanted)
{
    compartment = wanted;
    return NO_ERROR;
}

EXPORT ULONG WINAPI GetAdaptersAddresses(ULONG family, ULONG flags, void *reserved, IP_ADAPTER_ADDRESSES *into, ULONG *room)
{
    MIB_IF_TABLE2 *links;
    ULONG code = GetIfTable2(&links), needed = 0, count = 0;

    (void)family, (void)reserved;
    if (code != NO_ERROR)
        return code;
    needed = links->NumEntries * (sizeof *into + 256 * sizeof(WCHAR));
    if (*room < needed) {
        *room = needed;
        FreeMibTable(links);
        return ERROR_BUFFER_OVERFLOW;
    }
    for (ULONG i = 0; i < links->NumEntries; i++) {
        IP_ADAPTER_ADDRESSES *adapter = into + count;
        char name[64];

        if (!name_of(links->Table[i].InterfaceIndex, name, sizeof name))
            continue;
        memset(adapter, 0, sizeof *adapter);
        adapter->Length = sizeof *adapter;
        adapter->IfIndex = links->Table[i].InterfaceIndex;
        adapter->CompartmentId = compartment_of(name, adapter->IfIndex);
        if (!(flags & GAA_FLAG_INCLUDE_ALL_COMPARTMENTS) && adapter->CompartmentId != compartment)
            continue;
        adapter->FriendlyName = (WCHAR *)(into + links->NumEntries) + 256 * count;
        wcsncpy(adapter->FriendlyName, links->Table[i].Alias, 255);
        adapter->FriendlyName[255] = L'\0';
        if (count > 0)
            into[count - 1].Next = adapter;
        count++;
    }
    FreeMibTable(links);
    return count > 0 ? NO_ERROR : ERROR_NO_DATA;
}

PASS_ON(GetUnicastIpAddressTable, (ADDRESS_FAMILY family, MIB_UNICASTIPADDRESS_TABLE **table), (family, table))

/* Wine 8 reads the metrics of IPv4 routes as if they were hexadecimal. */
EXPORT DWORD WINAPI GetIpForwardTable2(ADDRESS_FAMILY family, MIB_IPFORWARD_TABLE2 **table)
{
    DWORD code = ((DWORD(WINAPI *)(ADDRESS_FAMILY, MIB_IPFORWARD_TABLE2 **))(void *)GetProcAddress(
        real, "GetIpForwardTable2"))(family, table);

    for (ULONG i = 0; code == NO_ERROR && i < (*table)->NumEntries; i++) {
        MIB_IPFORWARD_ROW2 *row = &(*table)->Table[i];
        char digits[16];

        if (row->DestinationPrefix.Prefix.si_family == AF_INET) {
            snprintf(digits, sizeof digits, "%lx", row->Metric);
            row->Metric = strtoul(digits, NULL, 10);
        }
    }
    return code;
}

/* Wine 8 has no neighbours of IPv6. */
EXPORT DWORD WINAPI GetIpNetTable2(ADDRESS_FAMILY family, MIB_IPNET_TABLE2 **table)
{
    return ((DWORD(WINAPI *)(ADDRESS_FAMILY, MIB_IPNET_TABLE2 **))(void *)GetProcAddress(real, "GetIpNetTable2"))(
        family == AF_UNSPEC ? AF_INET : family, table);
}

EXPORT void WINAPI FreeMibTable(void *table)
{
    ((void(WINAPI *)(void *))(void *)GetProcAddress(real, "FreeMibTable"))(table);
}

/* ---- addresses ---- */

EXPORT void WINAPI InitializeUnicastIpAddressEntry(MIB_UNICASTIPADDRESS_ROW *row)
{
    memset(row, 0, sizeof *row);
    row->PrefixOrigin = IpPrefixOriginManual + 0; /* Windows: IpPrefixOriginUnchanged */
    row->PreferredLifetime = row->ValidLifetime = 0xffffffff;
    row->OnLinkPrefixLength = 255;
}

EXPORT DWORD WINAPI CreateUnicastIpAddressEntry(const MIB_UNICASTIPADDRESS_ROW *row)
{
    char name[64], text[INET6_ADDRSTRLEN];

    REFUSE("CreateUnicastIpAddressEntry");
    if (!name_of(row->InterfaceIndex, name, sizeof name) || row->OnLinkPrefixLength > 128 || row->ValidLifetime == 0)
        return ERROR_INVALID_PARAMETER;
    text_of(&row->Address, text);
    return done(shell("ip addr add %s/%d dev '%s' %s 2>/dev/null", text, row->OnLinkPrefixLength, name,
                      version_of(&row->Address) == 6 ? "nodad" : ""),
                ERROR_OBJECT_ALREADY_EXISTS);
}

EXPORT DWORD WINAPI DeleteUnicastIpAddressEntry(const MIB_UNICASTIPADDRESS_ROW *row)
{
    char name[64], text[INET6_ADDRSTRLEN];

    REFUSE("DeleteUnicastIpAddressEntry");
    if (!name_of(row->InterfaceIndex, name, sizeof name))
        return ERROR_NOT_FOUND;
    text_of(&row->Address, text);
    /* Windows knows an address without its prefix length; `ip` wants both. */
    return done(shell("prefix=$(ip -%d -o addr show dev '%s' to %s | awk '{print $4}') && [ -n \"$prefix\" ] && "
                      "ip addr del \"$prefix\" dev '%s'", version_of(&row->Address), name, text, name),
                ERROR_NOT_FOUND);
}

/* ---- routes ---- */

EXPORT void WINAPI InitializeIpForwardEntry(MIB_IPFORWARD_ROW2 *row)
{
    memset(row, 0, sizeof *row);
    row->ValidLifetime = row->PreferredLifetime = 0xffffffff;
    row->Loopback = row->AutoconfigureAddress = row->Publish = row->Immortal = TRUE;
    row->Metric = 0xffffffff; /* Windows asks for a metric; without one, ERROR_INVALID_PARAMETER */
    row->Protocol = MIB_IPPROTO_NETMGMT;
}

static BOOL route_text(const MIB_IPFORWARD_ROW2 *row, char *into, size_t room)
{
    char name[64], prefix[INET6_ADDRSTRLEN], via[INET6_ADDRSTRLEN];

    if (!name_of(row->InterfaceIndex, name, sizeof name))
        return FALSE;
    text_of(&row->DestinationPrefix.Prefix, prefix);
    text_of(&row->NextHop, via);
    if (is_unspecified(&row->NextHop))
        snprintf(into, room, "%s/%d dev '%s'", prefix, row->DestinationPrefix.PrefixLength, name);
    else
        snprintf(into, room, "%s/%d via %s dev '%s' onlink", prefix, row->DestinationPrefix.PrefixLength, via, name);
    return TRUE;
}

EXPORT DWORD WINAPI CreateIpForwardEntry2(const MIB_IPFORWARD_ROW2 *row)
{
    char text[256];
    int version = version_of(&row->DestinationPrefix.Prefix);

    REFUSE("CreateIpForwardEntry2");
    if (row->Metric == 0xffffffff || row->ValidLifetime == 0 || row->Protocol != MIB_IPPROTO_NETMGMT)
        return ERROR_INVALID_PARAMETER;
    if (!route_text(row, text, sizeof text))
        return ERROR_NOT_FOUND;
    return done(shell("ip -%d route add %s metric %lu proto static 2>/dev/null", version, text, row->Metric),
                ERROR_OBJECT_ALREADY_EXISTS);
}

EXPORT DWORD WINAPI DeleteIpForwardEntry2(const MIB_IPFORWARD_ROW2 *row)
{
    char text[256];
    int version = version_of(&row->DestinationPrefix.Prefix);

    REFUSE("DeleteIpForwardEntry2");
    if (!route_text(row, text, sizeof text))
        return ERROR_NOT_FOUND;
    text[strlen(text) - (is_unspecified(&row->NextHop) ? 0 : strlen(" onlink"))] = '\0';
    return done(shell("ip -%d route del %s 2>/dev/null", version, text), ERROR_NOT_FOUND);
}

/* ---- neighbours ---- */

EXPORT DWORD WINAPI CreateIpNetEntry2(const MIB_IPNET_ROW2 *row)
{
    char name[64], text[INET6_ADDRSTRLEN];
    const UCHAR *mac = row->PhysicalAddress;

    REFUSE("CreateIpNetEntry2");
    if (!name_of(row->InterfaceIndex, name, sizeof name) || row->PhysicalAddressLength != 6)
        return ERROR_INVALID_PARAMETER;
    text_of(&row->Address, text);
    return done(shell("ip neigh add %s lladdr %02x:%02x:%02x:%02x:%02x:%02x dev '%s' nud permanent 2>/dev/null", text,
                      mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], name), ERROR_OBJECT_ALREADY_EXISTS);
}

EXPORT DWORD WINAPI DeleteIpNetEntry2(const MIB_IPNET_ROW2 *row)
{
    char name[64], text[INET6_ADDRSTRLEN];

    REFUSE("DeleteIpNetEntry2");
    if (!name_of(row->InterfaceIndex, name, sizeof name))
        return ERROR_NOT_FOUND;
    text_of(&row->Address, text);
    return done(shell("ip neigh del %s dev '%s' 2>/dev/null", text, name), ERROR_NOT_FOUND);
}

/* ---- settings of interfaces ---- */

EXPORT void WINAPI InitializeIpInterfaceEntry(MIB_IPINTERFACE_ROW *row)
{
    memset(row, 0, sizeof *row);
    row->Metric = row->NlMtu = 0xffffffff;
}

EXPORT DWORD WINAPI GetIpInterfaceEntry(MIB_IPINTERFACE_ROW *row)
{
    char name[64];

    if (row->Family != AF_INET && row->Family != AF_INET6)
        return ERROR_INVALID_PARAMETER;
    if (!name_of(row->InterfaceIndex, name, sizeof name) || compartment_of(name, row->InterfaceIndex) != compartment)
        return ERROR_NOT_FOUND;
    row->ForwardingEnabled = number_in(row->Family == AF_INET ? "Z:\\proc\\sys\\net\\ipv4\\conf\\%s\\forwarding"
                                                              : "Z:\\proc\\sys\\net\\ipv6\\conf\\%s\\forwarding", name) == 1;
    row->NlMtu = (ULONG)number_in("Z:\\sys\\class\\net\\%s\\mtu", name);
    row->SitePrefixLength = 64; /* as Windows does for IPv4, too, and then refuses it */
    row->Metric = 25;
    row->UseAutomaticMetric = TRUE;
    return NO_ERROR;
}

EXPORT DWORD WINAPI SetIpInterfaceEntry(MIB_IPINTERFACE_ROW *row)
{
    char name[64];

    REFUSE("SetIpInterfaceEntry");
    if (row->SitePrefixLength > (row->Family == AF_INET ? 32 : 128) || row->NlMtu == 0xffffffff)
        return ERROR_INVALID_PARAMETER;
    if (!name_of(row->InterfaceIndex, name, sizeof name) || compartment_of(name, row->InterfaceIndex) != compartment)
        return ERROR_NOT_FOUND;
    if (compartment != 1) /* the Pod's TAP device, which this interface stands for */
        return done(shell("pod=$(ip -o link show dev '%s' | sed -n 's/.*altname \\([0-9a-f-]*\\).*/\\1/p') && "
                          "ip link set '%s' mtu %lu && ip -n \"$pod\" link set eth0 mtu %lu",
                          name, name, row->NlMtu, row->NlMtu), ERROR_INVALID_PARAMETER);
    return done(shell("echo %d > /proc/sys/net/ipv%d/conf/%s/forwarding && ip link set '%s' mtu %lu",
                      row->ForwardingEnabled, row->Family == AF_INET ? 4 : 6, name, name, row->NlMtu),
                ERROR_INVALID_PARAMETER);
}

/* ---- changes: Wine calls back once only, so a thread compares what Wine reads. Nothing between two readings is lost,
 * as the first one is made before the caller goes on. ---- */

struct watch {
    PUNICAST_IPADDRESS_CHANGE_CALLBACK callback;
    void *context;
    HANDLE thread, stop;
    ULONG64 seen;
};

static void take(ULONG64 *digest, const void *data, size_t size)
{
    const UCHAR *bytes = data;

    while (size-- > 0)
        *digest = (*digest ^ *bytes++) * 0x100000001b3; /* FNV-1a */
}

static ULONG64 read_all(void)
{
    MIB_UNICASTIPADDRESS_TABLE *addresses;
    MIB_IPFORWARD_TABLE2 *routes;
    MIB_IF_TABLE2 *links;
    ULONG64 digest = 0xcbf29ce484222325;

    if (GetUnicastIpAddressTable(AF_UNSPEC, &addresses) == NO_ERROR) {
        for (ULONG i = 0; i < addresses->NumEntries; i++) {
            take(&digest, &addresses->Table[i].Address, sizeof(SOCKADDR_INET));
            take(&digest, &addresses->Table[i].InterfaceIndex, sizeof(NET_IFINDEX));
        }
        FreeMibTable(addresses);
    }
    if (GetIpForwardTable2(AF_UNSPEC, &routes) == NO_ERROR) {
        for (ULONG i = 0; i < routes->NumEntries; i++) {
            take(&digest, &routes->Table[i].InterfaceIndex, offsetof(MIB_IPFORWARD_ROW2, SitePrefixLength) - 8);
            take(&digest, &routes->Table[i].Metric, sizeof(ULONG));
        }
        FreeMibTable(routes);
    }
    if (GetIfTable2(&links) == NO_ERROR) {
        for (ULONG i = 0; i < links->NumEntries; i++) {
            take(&digest, &links->Table[i].InterfaceIndex, sizeof(NET_IFINDEX));
            take(&digest, &links->Table[i].Mtu, sizeof(ULONG));
            take(&digest, links->Table[i].Alias, sizeof links->Table[i].Alias);
        }
        FreeMibTable(links);
    }
    return digest;
}

static DWORD WINAPI follow(void *argument)
{
    struct watch *watch = argument;

    while (WaitForSingleObject(watch->stop, 50) == WAIT_TIMEOUT) {
        ULONG64 now = read_all();

        if (now != watch->seen) {
            watch->seen = now;
            watch->callback(watch->context, NULL, MibAddInstance);
        }
    }
    return 0;
}

static DWORD start(PUNICAST_IPADDRESS_CHANGE_CALLBACK callback, void *context, HANDLE *handle)
{
    struct watch *watch = calloc(1, sizeof *watch);

    watch->callback = callback;
    watch->context = context;
    watch->seen = read_all();
    watch->stop = CreateEventA(NULL, TRUE, FALSE, NULL);
    watch->thread = CreateThread(NULL, 0, follow, watch, 0, NULL);
    *handle = watch;
    return NO_ERROR;
}

EXPORT DWORD WINAPI NotifyUnicastIpAddressChange(ADDRESS_FAMILY family, PUNICAST_IPADDRESS_CHANGE_CALLBACK callback,
                                                 void *context, BOOLEAN initial, HANDLE *handle)
{
    (void)family, (void)initial;
    return start(callback, context, handle);
}

EXPORT DWORD WINAPI NotifyIpInterfaceChange(ADDRESS_FAMILY family, PIPINTERFACE_CHANGE_CALLBACK callback,
                                            void *context, BOOLEAN initial, HANDLE *handle)
{
    (void)family, (void)initial;
    return start((PUNICAST_IPADDRESS_CHANGE_CALLBACK)callback, context, handle);
}

EXPORT DWORD WINAPI NotifyRouteChange2(ADDRESS_FAMILY family, PIPFORWARD_CHANGE_CALLBACK callback, void *context,
                                       BOOLEAN initial, HANDLE *handle)
{
    (void)family, (void)initial;
    return start((PUNICAST_IPADDRESS_CHANGE_CALLBACK)callback, context, handle);
}

EXPORT DWORD WINAPI CancelMibChangeNotify2(HANDLE handle)
{
    struct watch *watch = handle;

    SetEvent(watch->stop);
    WaitForSingleObject(watch->thread, INFINITE);
    CloseHandle(watch->thread);
    CloseHandle(watch->stop);
    free(watch);
    return NO_ERROR;
}
