/* An engine that gives the memory of its weights away for a time, for example to a trainer on the
 * same machine: one BF16 tensor, served from one loop that also reads commands.
 *
 * Usage: wsync_example_sleeper SOCKET REPLICA TENSOR ROWS COLUMNS
 * Commands, one in each line of the standard input:
 *   sleep   stops serving and frees the memory
 *   wake    takes other memory, and attaches again: the newest version is loaded into it
 * It ends with the standard input. It prints each version that it holds with the sum of its
 * elements' bits, and what it does. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wsync/engine.h>

struct server {
  wsync_engine* link;
  uint16_t* weights; /* NULL: the memory is given away */
  uint64_t count;
  uint64_t step;
  int serving;
};

static int on_pause(void* user, const wsync_pause* pause) {
  struct server* server = user;
  (void)pause;
  server->serving = 0;
  wsync_engine_report_paused(server->link, server->step);
  return 0;
}

static int on_commit(void* user, wsync_version version) {
  const struct server* server = user;
  uint64_t sum = 0;
  for (uint64_t i = 0; i < server->count; ++i) sum += server->weights[i];
  printf("holds %" PRIu32 ".%" PRIu64 ", sum %" PRIu64 "\n", version.epoch, version.step, sum);
  return 0;
}

static int on_resume(void* user) {
  ((struct server*)user)->serving = 1;
  return 0;
}

static int failed(const struct server* server) {
  fprintf(stderr, "%s\n", wsync_engine_error(server->link));
  return -1;
}

/* The steps that have read the weights have ended, because this is called between two of them. */
static int go_to_sleep(struct server* server) {
  server->serving = 0;
  if (wsync_engine_suspend(server->link) != 0) return failed(server);
  free(server->weights); /* the library does not touch it any more */
  server->weights = NULL;
  puts("sleeps");
  return 0;
}

/* `serving` is set by on_resume, when the newest version has been loaded. */
static int wake_up(struct server* server) {
  uint16_t* weights = malloc(server->count * sizeof *weights); /* its content does not matter */
  if (weights == NULL || wsync_engine_move_tensor(server->link, 0, weights) != 0 ||
      wsync_engine_resume(server->link) != 0) {
    free(weights);
    return failed(server);
  }
  server->weights = weights;
  puts("is awake");
  return 0;
}

/* Returns 0 to go on, 1 at the end of the input, and -1 after a failure. */
static int obey(struct server* server) {
  char line[16];
  if (fgets(line, sizeof line, stdin) == NULL) return 1;
  if (strcmp(line, "sleep\n") == 0) return go_to_sleep(server);
  if (strcmp(line, "wake\n") == 0) return wake_up(server);
  fprintf(stderr, "unknown command %s", line);
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 6) {
    fprintf(stderr, "usage: %s SOCKET REPLICA TENSOR ROWS COLUMNS\n", argv[0]);
    return 2;
  }
  /* Each line is one write, and each command one read, so that poll() sees what there is. */
  setvbuf(stdout, NULL, _IOLBF, 0);
  setvbuf(stdin, NULL, _IONBF, 0);
  const uint64_t shape[2] = {strtoull(argv[4], NULL, 10), strtoull(argv[5], NULL, 10)};
  struct server server = {.count = shape[0] * shape[1]};
  const wsync_engine_options options = {
      .socket_path = argv[1],
      .replica = argv[2],
      .world_size = 1,
      .leader = 1,
      .take = WSYNC_TAKE_PIECES,
      .callbacks = {.pause = on_pause, .commit = on_commit, .resume = on_resume},
      .user = &server,
  };
  server.link = wsync_engine_create(&options);
  server.weights = calloc(server.count, sizeof *server.weights);
  const wsync_tensor tensor = {.name = argv[3],
                               .dtype = "BF16",
                               .shape = shape,
                               .shape_count = 2,
                               .destination = server.weights};
  int code = 0;
  if (server.weights == NULL || wsync_engine_add_tensor(server.link, &tensor) != 0 ||
      wsync_engine_attach(server.link) != 0)
    code = failed(&server);
  /* A command or an event of the link ends the wait of an engine that does not serve. While it is
   * suspended, the link has no events. */
  struct pollfd inputs[2] = {{.fd = 0, .events = POLLIN}, {.events = POLLIN}};
  while (code == 0) {
    inputs[1].fd = server.weights == NULL ? -1 : wsync_engine_fd(server.link);
    poll(inputs, 2, server.serving ? 0 : -1);
    if (inputs[0].revents != 0) code = obey(&server);
    if (server.weights != NULL && wsync_engine_poll(server.link, 0) != 0) code = failed(&server);
    if (server.serving) server.step++; /* a step would read the weights */
  }
  printf("served %" PRIu64 " steps\n", server.step);
  wsync_engine_destroy(server.link);
  free(server.weights);
  return code < 0;
}
