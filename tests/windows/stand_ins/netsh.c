/* Stands in for netsh, which does nothing in Wine: netsh interface set interface name=OLD newname=NEW. */
#include <windows.h>
#include <stdio.h>

int main(int count, char **words)
{
    int (CDECL *spawn)(char *const argv[], int wait) =
        (void *)GetProcAddress(GetModuleHandleA("ntdll.dll"), "__wine_unix_spawnvp");
    char script[512];
    char *argv[] = {"/usr/bin/python3", "-IS", script, "rename", NULL, NULL, NULL};

    if (count != 6 || strncmp(words[4], "name=", 5) != 0 || strncmp(words[5], "newname=", 8) != 0 ||
        GetEnvironmentVariableA("WINDLASS_STAND_IN_HNS", script, sizeof script) == 0) {
        puts("The syntax of the command is incorrect.");
        return 1;
    }
    argv[4] = words[4] + strlen("name=");
    argv[5] = words[5] + strlen("newname=");
    if (spawn(argv, 1) != 0) {
        puts("An interface with this name is not registered with the router.");
        return 1;
    }
    return 0;
}
