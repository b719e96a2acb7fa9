/*
 * windlass-cni: the CNI plugin that a container runtime executes on the Node.
 *
 * It forwards the CNI_* environment and standard input to the agent in one request over a Unix socket (a named pipe
 * on Windows), prints the reply and returns its exit code. The agent makes all decisions, with two exceptions that must
 * work without an agent: VERSION, and the error that the agent cannot be reached.
 *
 * The wire form (windlass/cni/wire.py is the other end):
 *   request: "WINDLASS-CNI 1 <environment bytes> <stdin bytes>\n", NUL-terminated KEY=VALUE entries, stdin as it is
 *   reply:   "WINDLASS-CNI 1 <exit code> <stdout bytes>\n", stdout as it is
 *
 * Nothing is allocated: all sizes are bounded and the buffers are static. A watchdog ends the process after
 * WINDLASS_CNI_SECONDS, so that every read and write below may block.
 *
 * Longer than 400 lines: both operating systems are in one file, so that one compiler command builds the plugin.
 */
#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
extern char **environ;
#endif
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#ifndef WINDLASS_CNI_SOCKET
#ifdef _WIN32
#define WINDLASS_CNI_SOCKET "C:/ProgramData/windlass/run/cni.sock"
#else
#define WINDLASS_CNI_SOCKET "/run/windlass/cni.sock"
#endif
#endif

#ifndef WINDLASS_CNI_SECONDS
#define WINDLASS_CNI_SECONDS 60 /* the limits of the agent add up to less, so that its error arrives first */
#endif

#define PROTOCOL "WINDLASS-CNI 1 "
#define NEWEST_VERSION "1.1.0"
#define SUPPORTED_VERSIONS "[\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]"

enum {
    MAX_ENVIRONMENT = 64 * 1024,
    MAX_STDIN = 1024 * 1024,
    MAX_ANSWER = 1024 * 1024, /* header included */
    MAX_HEADER = 64,
    MAX_SOCKET = 256,
    MAX_VERSION = 24,
};

/* Codes of the CNI specification. */
enum { INVALID_ENVIRONMENT = 4, IO_FAILURE = 5, INVALID_CONFIG = 7, TRY_AGAIN_LATER = 11, NOT_AVAILABLE = 50 };

static char environment_entries[MAX_ENVIRONMENT];
static char config[MAX_STDIN];
static char answer[MAX_ANSWER];
static char socket_path[MAX_SOCKET] = WINDLASS_CNI_SOCKET;
static char cni_version[MAX_VERSION] = NEWEST_VERSION;

/* ---- text ---- */

struct text {
    char data[4096];
    size_t used;
};

static void add(struct text *text, const char *piece)
{
    size_t size = strlen(piece);

    if (size > sizeof text->data - text->used)
        size = sizeof text->data - text->used;
    memcpy(text->data + text->used, piece, size);
    text->used += size;
}

static void add_number(struct text *text, size_t number)
{
    char digits[24];
    size_t at = sizeof digits - 1;

    digits[at] = '\0';
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    add(text, digits + at);
}

/* The contents of a JSON string. Characters outside printable ASCII become '?'. */
static void add_escaped(struct text *text, const char *piece)
{
    char two[3] = {'\\', '\0', '\0'};

    for (; *piece != '\0'; piece++) {
        bool printable = *piece >= ' ' && *piece <= '~';

        two[1] = printable ? *piece : '?';
        add(text, *piece == '"' || *piece == '\\' ? two : two + 1);
    }
}

static void add_error(struct text *text, unsigned code, const char *const msg[], const char *details)
{
    add(text, "{\"cniVersion\":\"");
    add(text, cni_version);
    add(text, "\",\"code\":");
    add_number(text, code);
    add(text, ",\"msg\":\"");
    for (; *msg != NULL; msg++)
        add_escaped(text, *msg);
    add(text, "\",\"details\":\"");
    add_escaped(text, details);
    add(text, "\"}\n");
}

/* ---- the operating system: three streams, the environment and a watchdog ---- */

static void deadline_passed_text(struct text *text);

#ifdef _WIN32

typedef HANDLE stream;

static stream standard_input(void) { return GetStdHandle(STD_INPUT_HANDLE); }

static stream standard_output(void) { return GetStdHandle(STD_OUTPUT_HANDLE); }

/* Bytes read, 0 at the end, -1 on failure. */
static ptrdiff_t read_some(stream from, char *into, size_t room)
{
    DWORD count = 0;

    if (ReadFile(from, into, (DWORD)room, &count, NULL))
        return (ptrdiff_t)count;
    return GetLastError() == ERROR_BROKEN_PIPE ? 0 : -1; /* the other end is closed */
}

static ptrdiff_t write_some(stream to, const char *data, size_t size)
{
    DWORD count = 0;

    return WriteFile(to, data, (DWORD)size, &count, NULL) ? (ptrdiff_t)count : -1;
}

static const char *last_error(void)
{
    static struct text text;

    text.used = 0;
    add(&text, "Windows error ");
    add_number(&text, GetLastError());
    text.data[text.used] = '\0';
    return text.data;
}

/* The pipe for the path of a socket: without any slash, as the agent and Open vSwitch name theirs. */
static const char *pipe_name(void)
{
    static const char prefix[] = "\\\\.\\pipe\\";
    static char name[sizeof prefix + MAX_SOCKET];
    size_t used = sizeof prefix - 1;

    if (strncmp(socket_path, prefix, used) == 0)
        return socket_path;
    memcpy(name, prefix, used);
    for (const char *at = socket_path; *at != '\0'; at++)
        if (*at != '/' && *at != '\\')
            name[used++] = *at;
    name[used] = '\0';
    return name;
}

static bool connect_agent(stream *agent)
{
    const char *pipe = pipe_name();

    for (;;) {
        /* Identification only: a foreign server of a pipe of this name cannot impersonate us. */
        *agent = CreateFileA(pipe, GENERIC_READ | GENERIC_WRITE, 0, NULL, OPEN_EXISTING,
                             SECURITY_SQOS_PRESENT | SECURITY_IDENTIFICATION, NULL);
        if (*agent != INVALID_HANDLE_VALUE)
            return true;
        if (GetLastError() != ERROR_PIPE_BUSY || !WaitNamedPipeA(pipe, WINDLASS_CNI_SECONDS * 1000))
            return false;
    }
}

static void disconnect(stream agent)
{
    CloseHandle(agent);
}

static volatile LONG printing;

static DWORD WINAPI watchdog(LPVOID unused)
{
    struct text text = {.used = 0};

    (void)unused;
    Sleep(WINDLASS_CNI_SECONDS * 1000);
    deadline_passed_text(&text);
    if (!printing)
        write_some(standard_output(), text.data, text.used);
    ExitProcess(1);
}

static void arm_watchdog(void)
{
    HANDLE thread = CreateThread(NULL, 0, watchdog, NULL, 0, NULL);

    if (thread != NULL)
        CloseHandle(thread);
}

static void update_watchdog(void)
{
    /* The thread makes its text when it is due. */
}

static void silence_watchdog(void)
{
    InterlockedExchange(&printing, 1);
}

/* Calls `visit` with each entry of the environment, in UTF-8. False as soon as `visit` says so. */
static bool each_variable(bool (*visit)(const char *entry))
{
    static char entry[MAX_ENVIRONMENT];
    LPWCH block = GetEnvironmentStringsW();
    bool fine = block != NULL;

    for (const WCHAR *at = block; fine && *at != L'\0'; at += wcslen(at) + 1)
        if (wcsncmp(at, L"CNI_", 4) == 0)
            fine = WideCharToMultiByte(CP_UTF8, 0, at, -1, entry, sizeof entry, NULL, NULL) > 0 && visit(entry);
    if (block != NULL)
        FreeEnvironmentStringsW(block);
    return fine;
}

#else

typedef int stream;

static stream standard_input(void) { return STDIN_FILENO; }

static stream standard_output(void) { return STDOUT_FILENO; }

/* Bytes read, 0 at the end, -1 on failure. */
static ptrdiff_t read_some(stream from, char *into, size_t room)
{
    ssize_t count;

    do
        count = read(from, into, room);
    while (count < 0 && errno == EINTR);
    return count;
}

static ptrdiff_t write_some(stream to, const char *data, size_t size)
{
    ssize_t count;

    do
        count = write(to, data, size);
    while (count < 0 && errno == EINTR);
    return count;
}

static const char *last_error(void)
{
    return strerror(errno);
}

static bool connect_agent(stream *agent)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int saved;

    if (strlen(socket_path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return false;
    }
    memcpy(address.sun_path, socket_path, strlen(socket_path) + 1);
    *agent = socket(AF_UNIX, SOCK_STREAM, 0);
    if (*agent < 0)
        return false;
    /* EINTR is not retried: the only signal with a handler ends the process. */
    if (connect(*agent, (const struct sockaddr *)&address, sizeof address) == 0)
        return true;
    saved = errno;
    close(*agent);
    errno = saved;
    return false;
}

static void disconnect(stream agent)
{
    close(agent);
}

/* The text of the watchdog, prepared beforehand: a signal handler may only call write and _exit. */
static struct text deadline_text;

static void watchdog(int signal_number)
{
    ssize_t count = write(STDOUT_FILENO, deadline_text.data, deadline_text.used);

    (void)signal_number;
    (void)count;
    _exit(1);
}

static void update_watchdog(void)
{
    struct text text = {.used = 0};
    sigset_t alarm_only;

    deadline_passed_text(&text);
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarm_only, NULL); /* the handler must not see a half-written text */
    deadline_text = text;
    sigprocmask(SIG_UNBLOCK, &alarm_only, NULL); /* even if the runtime left it blocked */
}

static void arm_watchdog(void)
{
    struct sigaction action = {.sa_handler = watchdog};

    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    update_watchdog();
    alarm(WINDLASS_CNI_SECONDS);
    /* A write to a closed socket is an error to report; SIGPIPE would end the process silently. */
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
}

static void silence_watchdog(void)
{
    deadline_text.used = 0;
}

static bool each_variable(bool (*visit)(const char *entry))
{
    for (char **entry = environ; *entry != NULL; entry++)
        if (strncmp(*entry, "CNI_", 4) == 0 && !visit(*entry))
            return false;
    return true;
}

#endif

static bool write_all(stream to, const char *data, size_t size)
{
    while (size > 0) {
        ptrdiff_t count = write_some(to, data, size);

        if (count <= 0)
            return false;
        data += count;
        size -= (size_t)count;
    }
    return true;
}

static int print(const char *data, size_t size, int exit_code)
{
    silence_watchdog(); /* it still ends the process, but must not print a second text */
    return write_all(standard_output(), data, size) ? exit_code : 1;
}

static int print_error(unsigned code, const char *const msg[], const char *details)
{
    struct text text = {.used = 0};

    add_error(&text, code, msg, details);
    return print(text.data, text.used, 1);
}

/* ---- what is known without the agent ---- */

static const char *command = "";
static size_t environment_used;

static bool keep_variable(const char *entry)
{
    size_t size = strlen(entry) + 1; /* the NUL goes with it */

    if (size > sizeof environment_entries - environment_used)
        return false;
    memcpy(environment_entries + environment_used, entry, size);
    if (strncmp(entry, "CNI_COMMAND=", 12) == 0)
        command = environment_entries + environment_used + 12;
    environment_used += size;
    return true;
}

static void deadline_passed_text(struct text *text)
{
    const char *const msg[] = {"timed out waiting for the Windlass agent at ", socket_path, NULL};

    add_error(text, strcmp(command, "STATUS") == 0 ? NOT_AVAILABLE : TRY_AGAIN_LATER, msg,
              "The agent is busy or stuck: see its log on this Node. The request can be repeated.");
}

static int agent_away(const char *reason)
{
    const char *const msg[] = {"the Windlass agent cannot be reached at ", socket_path, ": ", reason, NULL};

    return print_error(strcmp(command, "STATUS") == 0 ? NOT_AVAILABLE : TRY_AGAIN_LATER, msg,
                       "Check that the agent runs on this Node, and see its log. If it uses a different socket, set "
                       "agentSocket in the CNI network configuration.");
}

static int print_versions(void)
{
    struct text text = {.used = 0};

    add(&text, "{\"cniVersion\":\"");
    add(&text, cni_version);
    add(&text, "\",\"supportedVersions\":" SUPPORTED_VERSIONS "}\n");
    return print(text.data, text.used, 0);
}

/* ---- the two keys of the network configuration that the plugin needs ---- */

static size_t skip_space(const char *json, size_t size, size_t at)
{
    while (at < size && strchr(" \t\r\n", json[at]) != NULL && json[at] != '\0')
        at++;
    return at;
}

/* Copies the JSON string that starts at `at` (after its quote). False if it does not fit, does not end, or has an
 * escape beyond the three that a path needs. */
static bool copy_string(const char *json, size_t size, size_t at, char *into, size_t room)
{
    size_t used = 0;

    for (; at < size && json[at] != '"'; at++) {
        if (json[at] == '\\' && (++at == size || strchr("\\/\"", json[at]) == NULL))
            return false;
        if (json[at] == '\0' || used + 1 >= room)
            return false;
        into[used++] = json[at];
    }
    into[used] = '\0';
    return at < size && used > 0;
}

enum lookup { ABSENT, FOUND, UNUSABLE };

/* The string value of a key of the outermost object. Not a JSON parser: it follows strings and nesting only, which is
 * enough to ignore nested keys and values. */
static enum lookup find_string(const char *json, size_t size, const char *key, char *into, size_t room)
{
    size_t depth = 0;

    for (size_t at = 0; at < size; at++) {
        if (json[at] == '{' || json[at] == '[') {
            depth++;
        } else if (json[at] == '}' || json[at] == ']') {
            depth--;
        } else if (json[at] == '"') {
            size_t start = at + 1, end = start;

            while (end < size && json[end] != '"')
                end += json[end] == '\\' ? 2 : 1;
            if (end >= size)
                return ABSENT;
            at = end;
            if (depth == 1 && end - start == strlen(key) && memcmp(json + start, key, end - start) == 0) {
                size_t colon = skip_space(json, size, end + 1);
                size_t quote = skip_space(json, size, colon + 1);

                if (colon >= size || json[colon] != ':')
                    continue; /* a value that equals the key */
                if (quote >= size || json[quote] != '"')
                    return UNUSABLE;
                return copy_string(json, size, quote + 1, into, room) ? FOUND : UNUSABLE;
            }
        }
    }
    return ABSENT;
}

/* The version goes into the output: ignore anything that does not look like a version. */
static void take_version(size_t config_size)
{
    char asked[MAX_VERSION];

    if (find_string(config, config_size, "cniVersion", asked, sizeof asked) == FOUND &&
        strspn(asked, "0123456789.") == strlen(asked))
        memcpy(cni_version, asked, strlen(asked) + 1);
}

/* ---- the exchange ---- */

/* A decimal number and the character that must follow it. */
static bool take_number(const char **at, const char *end, char follows, size_t most, size_t *number)
{
    const char *digits = *at;

    *number = 0;
    while (*at < end && **at >= '0' && **at <= '9') {
        *number = *number * 10 + (size_t)(**at - '0');
        if (*number > most)
            return false;
        ++*at;
    }
    return *at > digits && *at < end && *(*at)++ == follows;
}

static int exchange(stream agent, size_t config_size)
{
    struct text header = {.used = 0};
    size_t used = 0;

    add(&header, PROTOCOL);
    add_number(&header, environment_used);
    add(&header, " ");
    add_number(&header, config_size);
    add(&header, "\n");
    /* Read the reply even if a write fails: an agent that refuses a request early replies before it closes. */
    if (write_all(agent, header.data, header.used) && write_all(agent, environment_entries, environment_used))
        write_all(agent, config, config_size);

    for (;;) {
        const char *at = answer + strlen(PROTOCOL), *end = answer + used;
        bool whole_header = memchr(answer, '\n', used) != NULL;
        size_t exit_code, size;
        ptrdiff_t count;

        if (whole_header || used >= MAX_HEADER) {
            if (used < strlen(PROTOCOL) || memcmp(answer, PROTOCOL, strlen(PROTOCOL)) != 0 ||
                !take_number(&at, end, ' ', 255, &exit_code) ||
                !take_number(&at, end, '\n', MAX_ANSWER - MAX_HEADER, &size))
                return agent_away("the server does not speak the protocol of this plugin");
            if ((size_t)(end - at) >= size)
                return print(at, size, (int)exit_code);
        }
        count = read_some(agent, answer + used, sizeof answer - used);
        if (count < 0)
            return agent_away(last_error());
        if (count == 0)
            return agent_away("the connection was closed before the reply");
        used += (size_t)count;
    }
}

int main(void)
{
    static const char *const no_room[] = {"the CNI_ variables of the environment do not fit into 64 KiB", NULL};
    static const char *const no_command[] = {"CNI_COMMAND is not set", NULL};
    static const char *const no_stdin[] = {"standard input cannot be read", NULL};
    static const char *const big_stdin[] = {"the network configuration on standard input exceeds 1 MiB", NULL};
    static const char *const bad_socket[] = {"agentSocket in the network configuration cannot be used", NULL};
    size_t config_size = 0;
    stream agent;
    ptrdiff_t count;
    int exit_code;

    arm_watchdog();
    if (!each_variable(keep_variable))
        return print_error(INVALID_ENVIRONMENT, no_room, "Check CNI_ARGS.");
    if (*command == '\0')
        return print_error(INVALID_ENVIRONMENT, no_command,
                           "This is a CNI plugin: container runtimes start it, with a command and a configuration.");

    while ((count = read_some(standard_input(), config + config_size, sizeof config - config_size)) > 0)
        config_size += (size_t)count;
    if (config_size == sizeof config)
        return print_error(INVALID_CONFIG, big_stdin, "Check the CNI configuration file of this network.");
    if (count < 0)
        return print_error(IO_FAILURE, no_stdin, last_error());
    take_version(config_size);
    /* Never forwarded: VERSION has no agentSocket, and must work without an agent. */
    if (strcmp(command, "VERSION") == 0)
        return print_versions();
    if (find_string(config, config_size, "agentSocket", socket_path, sizeof socket_path) == UNUSABLE)
        return print_error(INVALID_CONFIG, bad_socket,
                           "It must be the path of the agent's socket: a string, without escapes beyond \\\\ and \\/.");
    update_watchdog();

    if (!connect_agent(&agent))
        return agent_away(last_error());
    exit_code = exchange(agent, config_size);
    disconnect(agent);
    return exit_code;
}
