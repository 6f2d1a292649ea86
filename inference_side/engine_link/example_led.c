/* An engine of two ranks whose steps are led: each rank is a process, and the header of each step
 * goes from the leader to the follower over a socket, as it would with a broadcast. Each rank holds
 * half of the rows of one tensor, which is BF16 in the checkpoint and F32 in its memory.
 * Usage: wsync_example_led SOCKET REPLICA TENSOR ROWS COLUMNS VERSIONS [stale]
 * Serves until the leader has committed VERSIONS versions and stepped under the last one. A step
 * reads all weights of a rank. It fails unless they are all equal, and equal in both ranks, which
 * they are if each version has one value in all elements. With "stale", the leader goes on saying
 * that it steps under its first version, as a leader would that had not loaded: the follower finds
 * it. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wsync/engine.h>

enum { kFound = 3, kMixed = 4, kBroken = 5 };

struct rank {
  wsync_engine* link;
  float* weights;
  size_t count;
  long commits;
};

/* What a follower tells after a step. */
struct report {
  uint64_t step;
  float value;
};

static int on_commit(void* user, wsync_version version) {
  (void)version;
  ((struct rank*)user)->commits++;
  return 0;
}

/* One step: reads every weight. Returns 0 if they are not all equal. */
static int step(const struct rank* rank, float* value) {
  *value = rank->weights[0];
  for (size_t i = 1; i < rank->count; ++i)
    if (rank->weights[i] != *value) return 0;
  return 1;
}

static int is_go(const wsync_step_header* header) { return header->word == WSYNC_STEP_GO; }

/* Waits for the peer, and serves the link meanwhile. Returns 0 when `bytes` have arrived. */
static int receive(struct rank* rank, int peer, void* into, size_t bytes) {
  struct pollfd events[2] = {{.fd = peer, .events = POLLIN},
                             {.fd = wsync_engine_fd(rank->link), .events = POLLIN}};
  for (;;) {
    if (poll(events, 2, -1) < 0) return -1;
    if (events[1].revents != 0 && wsync_engine_poll(rank->link, 0) != 0) return -1;
    if (events[0].revents != 0) return recv(peer, into, bytes, 0) == (ssize_t)bytes ? 0 : -1;
  }
}

static int lead(struct rank* rank, int peer, long versions, int is_stale) {
  wsync_version first = {0};
  uint64_t steps = 0;
  long stepped_under = 0; /* commits before the last step */
  while (stepped_under < versions) {
    wsync_step_header header;
    if (wsync_engine_poll(rank->link, 0) != 0 || wsync_engine_lead_step(rank->link, &header) != 0) {
      fprintf(stderr, "%s\n", wsync_engine_error(rank->link));
      return kBroken;
    }
    if (is_go(&header) && first.epoch == 0)
      first = (wsync_version){.epoch = header.version_epoch, .step = header.version_step};
    if (is_go(&header) && is_stale) header.version_step = first.step;
    if (send(peer, &header, sizeof header, MSG_NOSIGNAL) != sizeof header) return kBroken;
    if (!is_go(&header)) { /* nothing to do before the sidecar says something */
      if (wsync_engine_poll(rank->link, -1) != 0) return kBroken;
      continue;
    }
    float value = 0;
    struct report report;
    const int is_whole = step(rank, &value);
    if (receive(rank, peer, &report, sizeof report) != 0) {
      fprintf(stderr, "the follower has ended in step %" PRIu64 "\n", header.step);
      return kBroken;
    }
    if (!is_whole || report.step != header.step || report.value != value) {
      fprintf(stderr, "step %" PRIu64 " read %g here and %g in the follower\n", header.step,
              (double)value, (double)report.value);
      return kMixed;
    }
    ++steps;
    stepped_under = rank->commits;
  }
  printf("%" PRIu64 " steps, %ld versions\n", steps, rank->commits);
  return 0;
}

static int follow(struct rank* rank, int peer) {
  for (;;) {
    wsync_step_header header;
    int go = 0;
    if (receive(rank, peer, &header, sizeof header) != 0) return 0; /* the leader has ended */
    if (wsync_engine_follow_step(rank->link, &header, &go) != 0) {
      fprintf(stderr, "%s\n", wsync_engine_error(rank->link));
      return kFound;
    }
    if (!go) continue;
    struct report report = {.step = header.step};
    if (!step(rank, &report.value)) return kMixed;
    if (send(peer, &report, sizeof report, MSG_NOSIGNAL) != sizeof report) return 0;
  }
}

int main(int argc, char** argv) {
  if (argc < 7) {
    fprintf(stderr, "usage: %s SOCKET REPLICA TENSOR ROWS COLUMNS VERSIONS [stale]\n", argv[0]);
    return 2;
  }
  /* Before any handle exists: a child must not use those of its parent. */
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return 2;
  const pid_t child = fork();
  if (child < 0) return 2;
  const uint32_t number = child == 0 ? 1 : 0;
  close(ends[1 - number]);

  struct rank rank = {0};
  const uint64_t shape[2] = {strtoull(argv[4], NULL, 10), strtoull(argv[5], NULL, 10)};
  const wsync_range half = {.dim = 0, .begin = number * (shape[0] / 2), .length = shape[0] / 2};
  const wsync_engine_options options = {
      .socket_path = argv[1],
      .replica = argv[2],
      .rank = number,
      .world_size = 2,
      .leader = number == 0,
      .take = WSYNC_TAKE_PIECES,
      .callbacks = {.commit = on_commit},
      .user = &rank,
      .led_steps = 1,
  };
  rank.count = half.length * shape[1];
  rank.weights = calloc(rank.count, sizeof *rank.weights);
  rank.link = wsync_engine_create(&options);
  const wsync_tensor tensor = {
      .name = argv[3],
      .dtype = "BF16",
      .shape = shape,
      .shape_count = 2,
      .ranges = &half,
      .range_count = 1,
      .destination = rank.weights,
      .destination_dtype = "F32",
  };
  if (rank.weights == NULL || wsync_engine_add_tensor(rank.link, &tensor) != 0 ||
      wsync_engine_attach(rank.link) != 0) {
    fprintf(stderr, "%s\n", wsync_engine_error(rank.link));
    return 2;
  }
  const int is_stale = argc > 7 && strcmp(argv[7], "stale") == 0;
  int code = number == 0 ? lead(&rank, ends[0], strtol(argv[6], NULL, 10), is_stale)
                         : follow(&rank, ends[1]);
  close(ends[number]);
  wsync_engine_destroy(rank.link);
  free(rank.weights);
  if (number == 0) { /* what the follower has found */
    int status = 0;
    waitpid(child, &status, 0);
    const int found = WIFEXITED(status) ? WEXITSTATUS(status) : kBroken;
    if (found != 0) code = found;
  }
  return code;
}
