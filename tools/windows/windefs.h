/* Takes the place of Open vSwitch's include/windows/windefs.h, which is written for Microsoft's compiler, when mingw
 * compiles the tree. mingw needs the Winsock headers first, and has some of the names itself. */
#ifndef WINDEFS_H
#define WINDEFS_H 1

#include <winsock2.h>
#include <ws2tcpip.h>
#include <mswsock.h>
#include <iphlpapi.h>
#include <windows.h>
#include <io.h>
#include <inttypes.h>
#include <sys/types.h>
#include <time.h>
#include <pthread_time.h>

#undef INET6_ADDRSTRLEN
#define INET6_ADDRSTRLEN 46

#define u_int8_t uint8_t
#define u_int16_t uint16_t
#define u_int32_t uint32_t
#define u_int64_t uint64_t

#define srandom srand
#define random rand
#define EPFNOSUPPORT WSAEPFNOSUPPORT

/* lib/timeval.c has a static function of this name; winpthreads declares one, too. */
struct timespec;
#define clock_gettime ovs_clock_gettime
static int clock_gettime(clock_t id, struct timespec *ts);

char *strsep(char **stringp, const char *delim);

#endif
