/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   How the ranks of a host talk: rank 0 listens on an abstract socket that the unique id names, and stands between all others. Every
   wait ends with the timeout. Where an exchange fails on rank 0, it tells the others why. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "tdist_world.h"

#define MAGIC 0x74646973u
#define GRACE_MS 2000                 /* for rank 0's answer, which says more than a timeout of one's own */
#define MOST_BYTES 1024               /* that a rank gives in an exchange */

typedef struct header {
    uint32_t magic, bytes;
    uint64_t count;                   /* which exchange */
    int32_t rank, status;
    char what[24], words[200];
} header;

int tdist_unique_id_create(tdist_unique_id *id) {
    if (id == NULL)
        return tdist_fail(TDIST_ERR_ARGUMENT, "tdist_unique_id_create: no place for the id");
    if (getrandom(id->bytes, sizeof id->bytes, 0) != (ssize_t)sizeof id->bytes)
        return tdist_fail(TDIST_ERR_SYSTEM, "getrandom: %s", strerror(errno));
    return TDIST_OK;
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static socklen_t name_of(const tdist_unique_id *id, struct sockaddr_un *name) {
    memset(name, 0, sizeof *name);
    name->sun_family = AF_UNIX;
    memcpy(name->sun_path + 1, "tdist-", 6);            /* a first byte of 0: no file, and gone with its process */
    for (int i = 0; i < 24; i++)
        snprintf(name->sun_path + 7 + 2 * i, 3, "%02x", id->bytes[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 7 + 48);
}

/* Whether the socket can be read before the deadline. */
static int readable(int socket, int64_t deadline) {
    struct pollfd one = {.fd = socket, .events = POLLIN};
    for (;;) {
        int64_t left = deadline - now_ms();
        int found = poll(&one, 1, left > 0 ? (int)left : 0);
        if (found > 0)
            return TDIST_OK;
        if (found == 0)
            return TDIST_ERR_TIMEOUT;
        if (errno != EINTR)
            return TDIST_ERR_SYSTEM;
    }
}

static int send_all(int socket, const header *head, const void *bytes, size_t size, const int *files, size_t file_count) {
    struct iovec parts[2] = {{(void *)(uintptr_t)head, sizeof *head}, {(void *)(uintptr_t)bytes, size}};
    union { char bytes[CMSG_SPACE(sizeof(int) * TDIST_MAX_WORLD)]; struct cmsghdr aligned; } control;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = size > 0 ? 2 : 1};
    memset(&control, 0, sizeof control);
    if (file_count > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * file_count);
        struct cmsghdr *found = CMSG_FIRSTHDR(&message);
        found->cmsg_level = SOL_SOCKET;
        found->cmsg_type = SCM_RIGHTS;
        found->cmsg_len = CMSG_LEN(sizeof(int) * file_count);
        memcpy(CMSG_DATA(found), files, sizeof(int) * file_count);
    }
    ssize_t sent;
    do
        sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)(sizeof *head + size))
        return TDIST_OK;
    return sent < 0 && errno != EPIPE && errno != ECONNRESET ? TDIST_ERR_SYSTEM : TDIST_ERR_PEER;
}

/* files: room for `room` descriptors, of which *file_count have come. */
static int receive(int socket, int64_t deadline, header *head, void *bytes, size_t size, int *files, size_t room, size_t *file_count) {
    int status = readable(socket, deadline);
    struct iovec parts[2] = {{head, sizeof *head}, {bytes, size}};
    union { char bytes[CMSG_SPACE(sizeof(int) * TDIST_MAX_WORLD)]; struct cmsghdr aligned; } control;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = size > 0 ? 2 : 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    if (file_count != NULL)
        *file_count = 0;
    if (status != TDIST_OK)
        return status;
    ssize_t found = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    for (int reset = 0; found < 0 && (errno == EINTR || (errno == ECONNRESET && !reset)); reset |= errno == ECONNRESET)
        found = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);    /* a reset is said once, before what the other one sent at last */
    if (found <= 0)
        return found == 0 || errno == ECONNRESET ? TDIST_ERR_PEER : TDIST_ERR_SYSTEM;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part != NULL; part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int file;
            memcpy(&file, CMSG_DATA(part) + i * sizeof file, sizeof file);
            if (file_count != NULL && *file_count < room)
                files[(*file_count)++] = file;
            else
                close(file);
        }
    }
    if (message.msg_flags & MSG_CTRUNC && file_count != NULL) {     /* what the kernel does for want of descriptors */
        errno = EMFILE;
        return TDIST_ERR_SYSTEM;
    }
    if (found < (ssize_t)sizeof *head || head->magic != MAGIC || message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
        return TDIST_ERR_MISMATCH;
    return head->status == TDIST_OK && found != (ssize_t)(sizeof *head + head->bytes) ? TDIST_ERR_MISMATCH : TDIST_OK;
}

static header heading(const tdist_hub *hub, const char *what, size_t bytes, int status) {
    header head = {.magic = MAGIC, .bytes = (uint32_t)bytes, .count = hub->count, .rank = hub->rank, .status = status};
    snprintf(head.what, sizeof head.what, "%s", what);
    if (status != TDIST_OK)
        snprintf(head.words, sizeof head.words, "%.*s", (int)sizeof head.words - 1, tdist_last_error());
    return head;
}

static int broken(tdist_hub *hub, int status, const char *what, int rank) {
    hub->broken = status;
    if (status == TDIST_ERR_TIMEOUT)
        return tdist_fail(status, "%s: rank %d did not come within %d ms", what, rank, hub->timeout_ms);
    if (status == TDIST_ERR_PEER)
        return tdist_fail(status, "%s: rank %d has left the world, or died", what, rank);
    if (status == TDIST_ERR_SYSTEM)
        return tdist_fail(status, "%s: rank %d: %s", what, rank, strerror(errno));
    return tdist_fail(status, "%s: rank %d does something else at this point", what, rank);
}

/* -- meeting --------------------------------------------------------------------------------------------------------------- */
static int listen_at(tdist_hub *hub, const tdist_unique_id *id, int64_t deadline) {
    struct sockaddr_un name;
    socklen_t length = name_of(id, &name);
    char missing[160] = "";
    int left = hub->size - 1, status = TDIST_OK;
    hub->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (hub->listener < 0 || bind(hub->listener, (struct sockaddr *)&name, length) != 0 || listen(hub->listener, TDIST_MAX_WORLD) != 0)
        return tdist_fail(errno == EADDRINUSE ? TDIST_ERR_MISMATCH : TDIST_ERR_SYSTEM,
                          errno == EADDRINUSE ? "two ranks 0 for one unique id" : "a socket for the world: %s", strerror(errno));
    while (left > 0 && (status = readable(hub->listener, deadline)) == TDIST_OK) {
        struct ucred who = {0};
        socklen_t size = sizeof who;
        header head;
        int found = accept4(hub->listener, NULL, NULL, SOCK_CLOEXEC);
        if (found < 0 && (errno == EINTR || errno == EAGAIN || errno == ECONNABORTED))
            continue;
        if (found < 0) {
            status = TDIST_ERR_SYSTEM;
            break;
        }
        int fits = getsockopt(found, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == geteuid() &&
                   receive(found, deadline, &head, NULL, 0, NULL, 0, NULL) == TDIST_OK && head.count == (uint64_t)hub->size &&
                   head.rank > 0 && head.rank < hub->size && hub->sockets[head.rank] < 0;
        if (!fits) {                                    /* another user, another size of the world, or a rank that is taken */
            tdist_fail(TDIST_ERR_MISMATCH, "rank 0 has a world of %d, and each rank once", hub->size);
            header answer = heading(hub, "meeting", 0, TDIST_ERR_MISMATCH);
            send_all(found, &answer, NULL, 0, NULL, 0);
            close(found);
            continue;
        }
        hub->sockets[head.rank] = found;
        left--;
    }
    if (status == TDIST_OK)
        return TDIST_OK;
    int reason = errno;
    for (int r = 1; r < hub->size; r++)
        if (hub->sockets[r] < 0 && strlen(missing) < sizeof missing - 8)
            snprintf(missing + strlen(missing), sizeof missing - strlen(missing), " %d", r);
    if (status == TDIST_ERR_SYSTEM)
        tdist_fail(status, "meeting: %s", strerror(reason));
    else
        tdist_fail(status, "meeting: rank%s%s did not come within %d ms", left > 1 ? "s" : "", missing, hub->timeout_ms);
    header answer = heading(hub, "meeting", 0, status);
    for (int r = 1; r < hub->size; r++)
        if (hub->sockets[r] >= 0)
            send_all(hub->sockets[r], &answer, NULL, 0, NULL, 0);
    return status;
}

static int connect_to(tdist_hub *hub, const tdist_unique_id *id, int64_t deadline) {
    struct sockaddr_un name;
    socklen_t length = name_of(id, &name);
    header head = heading(hub, "meeting", 0, TDIST_OK);
    head.count = (uint64_t)hub->size;
    hub->sockets[0] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (hub->sockets[0] < 0)
        return tdist_fail(TDIST_ERR_SYSTEM, "a socket for the world: %s", strerror(errno));
    while (connect(hub->sockets[0], (struct sockaddr *)&name, length) != 0) {
        struct timespec moment = {0, 5000000};
        if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR)
            return tdist_fail(TDIST_ERR_SYSTEM, "meeting rank 0: %s", strerror(errno));
        if (now_ms() > deadline)
            return tdist_fail(TDIST_ERR_TIMEOUT, "meeting: rank 0 did not come within %d ms", hub->timeout_ms);
        nanosleep(&moment, NULL);
    }
    int status = send_all(hub->sockets[0], &head, NULL, 0, NULL, 0);
    return status == TDIST_OK ? status : broken(hub, status, "meeting", 0);
}

int tdist_hub_open(tdist_hub *hub, const tdist_unique_id *id, int rank, int size, int timeout_ms) {
    int64_t deadline = now_ms() + timeout_ms;
    memset(hub, 0, sizeof *hub);
    hub->rank = rank;
    hub->size = size;
    hub->timeout_ms = timeout_ms;
    hub->listener = -1;
    for (int r = 0; r < TDIST_MAX_WORLD; r++)
        hub->sockets[r] = -1;
    if (size == 1)
        return TDIST_OK;
    return rank == 0 ? listen_at(hub, id, deadline) : connect_to(hub, id, deadline);
}

void tdist_hub_close(tdist_hub *hub) {
    for (int r = 0; r < TDIST_MAX_WORLD; r++)
        if (hub->sockets[r] >= 0)
            close(hub->sockets[r]);
    if (hub->listener >= 0)
        close(hub->listener);
    for (int r = 0; r < TDIST_MAX_WORLD; r++)
        hub->sockets[r] = -1;
    hub->listener = -1;
}

/* -- exchanges ------------------------------------------------------------------------------------------------------------- */
/* Rank 0: takes what all others give. files: of each rank, or NULL. */
static int gather(tdist_hub *hub, const char *what, size_t bytes, unsigned char *all, int *files) {
    int64_t deadline = now_ms() + hub->timeout_ms;
    int status = TDIST_OK;
    for (int r = 1; r < hub->size && status == TDIST_OK; r++) {
        header head;
        size_t came = 0;
        int one = receive(hub->sockets[r], deadline, &head, all + (size_t)r * bytes, bytes, files == NULL ? NULL : &files[r], 1, &came);
        if (one == TDIST_OK && (head.count != hub->count || head.bytes != bytes || strncmp(head.what, what, sizeof head.what) != 0 ||
                                came != (files != NULL)))
            one = TDIST_ERR_MISMATCH;
        if (one != TDIST_OK)
            status = broken(hub, one, what, r);
    }
    return status;
}

/* The others: give theirs, and wait for rank 0's answer. */
static int ask(tdist_hub *hub, const char *what, const void *mine, size_t bytes, const int *file, void *all, size_t answer_bytes,
               int *files, size_t room, size_t *came) {
    header head = heading(hub, what, bytes, TDIST_OK);
    int status = send_all(hub->sockets[0], &head, mine, bytes, file, file != NULL);
    if (status == TDIST_OK || status == TDIST_ERR_PEER)         /* rank 0 may have said why before it left */
        status = receive(hub->sockets[0], now_ms() + hub->timeout_ms + GRACE_MS, &head, all, answer_bytes, files, room, came);
    if (status != TDIST_OK)
        return broken(hub, status, what, 0);
    if (head.status != TDIST_OK) {
        hub->broken = head.status;
        return tdist_fail(head.status, "rank 0: %.*s", (int)sizeof head.words, head.words);
    }
    return head.count == hub->count && head.bytes == answer_bytes ? TDIST_OK : broken(hub, TDIST_ERR_MISMATCH, what, 0);
}

int tdist_hub_exchange(tdist_hub *hub, const char *what, const void *mine, size_t bytes, void *all) {
    size_t whole = bytes * (size_t)hub->size, came = 0;
    if (hub->broken)
        return tdist_fail(hub->broken, "%s: an earlier exchange with other ranks has failed; make the world anew", what);
    if (bytes > MOST_BYTES)
        return tdist_fail(TDIST_ERR_ARGUMENT, "%s: %zu bytes are too many", what, bytes);
    memcpy((unsigned char *)all + bytes * (size_t)hub->rank, mine, bytes);
    if (hub->size == 1)
        return TDIST_OK;
    int status;
    if (hub->rank != 0) {
        status = ask(hub, what, mine, bytes, NULL, all, whole, NULL, 0, &came);
    } else {
        status = gather(hub, what, bytes, all, NULL);
        header head = heading(hub, what, status == TDIST_OK ? whole : 0, status);
        for (int r = 1; r < hub->size; r++) {
            int one = send_all(hub->sockets[r], &head, all, status == TDIST_OK ? whole : 0, NULL, 0);
            if (one != TDIST_OK && status == TDIST_OK)
                status = broken(hub, one, what, r);
        }
    }
    hub->count++;
    return status;
}

int tdist_hub_exchange_files(tdist_hub *hub, int mine, int *files) {
    static const char what[] = "memory of ranks";
    int others[TDIST_MAX_WORLD], status = TDIST_OK;
    size_t came = 0;
    for (int r = 0; r < hub->size; r++)
        files[r] = -1;
    if (hub->broken)
        return tdist_fail(hub->broken, "%s: an earlier exchange with other ranks has failed", what);
    if (hub->size == 1)
        return TDIST_OK;
    if (hub->rank != 0) {
        status = ask(hub, what, NULL, 0, &mine, NULL, 0, others, TDIST_MAX_WORLD, &came);
        for (size_t i = 0; i < came; i++)               /* of all ranks but this one, in order */
            files[i < (size_t)hub->rank ? i : i + 1] = others[i];
        if (status == TDIST_OK && came != (size_t)hub->size - 1)
            status = broken(hub, TDIST_ERR_MISMATCH, what, 0);
    } else {
        unsigned char none[1];
        status = gather(hub, what, 0, none, files);
        header head = heading(hub, what, 0, status);
        for (int r = 1; r < hub->size; r++) {
            int count = 0;
            for (int other = 0; other < hub->size && status == TDIST_OK; other++)
                if (other != r)
                    others[count++] = other == 0 ? mine : files[other];
            int one = send_all(hub->sockets[r], &head, NULL, 0, others, (size_t)count);
            if (one != TDIST_OK && status == TDIST_OK)
                status = broken(hub, one, what, r);
        }
    }
    hub->count++;
    return status;
}
