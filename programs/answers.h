// Servers in processes that share a socket that listens, and questions to them: for two numbers the
// answer is a third.
#ifndef ANSWERS_H
#define ANSWERS_H

#include "common.h"
#include <sys/socket.h>

enum { SERVERS = 3 };

// Starts the servers.
static void serve(int listener, pid_t *servers) {
    for (int i = 0; i < SERVERS; i++) {
        if (!(servers[i] = fork()))
            for (;;) {
                long numbers[2];
                int one = accept(listener, NULL, NULL);
                if (one < 0 || recv(one, numbers, sizeof numbers, MSG_WAITALL) != sizeof numbers)
                    _exit(1);
                long answer = numbers[0] * 1000 + numbers[1];
                if (send(one, &answer, sizeof answer, 0) != sizeof answer)
                    _exit(1);
                close(one);
            }
    }
}

// Sends a question by a socket that is connected, and returns true if the answer is right.
static bool ask(int socket, long one, long other) {
    long numbers[2] = {one, other}, answer = 0;
    bool good = send(socket, numbers, sizeof numbers, 0) == sizeof numbers;
    return good && recv(socket, &answer, sizeof answer, MSG_WAITALL) == sizeof answer && answer == one * 1000 + other;
}

// Ends the servers. Returns true if none had ended.
static bool end_servers(const pid_t *servers) {
    bool good = true;
    for (int i = 0; i < SERVERS; i++) {
        int status;
        good &= !kill(servers[i], SIGTERM) && waitpid(servers[i], &status, 0) == servers[i] && WIFSIGNALED(status);
    }
    return good;
}

#endif
