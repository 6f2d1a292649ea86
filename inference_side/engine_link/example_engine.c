/* A minimal engine: one BF16 tensor, weights taken as pieces, served from one loop.
 * Usage: wsync_example_engine SOCKET REPLICA TENSOR ROWS COLUMNS [VERSIONS]
 * Exits with 0 after VERSIONS commits (default 1), each followed by a resume.
 *
 * With weights on a GPU, set .weights_on = WSYNC_DEVICE_CUDA and .gpu = its index in the options,
 * and use a pointer from cudaMalloc as .destination. on_pause must then wait for the step's kernels
 * (cudaStreamSynchronize) before it reports; the kernels of the next step read the new weights. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <wsync/engine.h>

struct server {
  wsync_engine* link;
  uint64_t step;
  int serving;
  long commits_left;
};

static int on_pause(void* user, const wsync_pause* pause) {
  struct server* server = user;
  (void)pause;         /* the mode, the version that comes, its size */
  server->serving = 0; /* called between two steps, so the step is over */
  wsync_engine_report_paused(server->link, server->step);
  return 0;
}

static int on_commit(void* user, wsync_version version) {
  struct server* server = user;
  server->commits_left--;
  printf("holds version %" PRIu32 ".%" PRIu64 "\n", version.epoch, version.step);
  return 0;
}

static int on_resume(void* user) {
  ((struct server*)user)->serving = 1;
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 6) {
    fprintf(stderr, "usage: %s SOCKET REPLICA TENSOR ROWS COLUMNS [VERSIONS]\n", argv[0]);
    return 2;
  }
  struct server server = {.commits_left = argc > 6 ? strtol(argv[6], NULL, 10) : 1};
  const uint64_t shape[2] = {strtoull(argv[4], NULL, 10), strtoull(argv[5], NULL, 10)};
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
  /* Allocating may take minutes. `wsync status` names this engine meanwhile. Without a sidecar, it
   * goes on all the same. */
  wsync_engine_report_starting(server.link);
  uint16_t* weights = calloc(shape[0] * shape[1], sizeof *weights);
  const wsync_tensor tensor = {
      .name = argv[3], .dtype = "BF16", .shape = shape, .shape_count = 2, .destination = weights};
  if (weights == NULL || wsync_engine_add_tensor(server.link, &tensor) != 0 ||
      wsync_engine_attach(server.link) != 0) {
    fprintf(stderr, "%s\n", wsync_engine_error(server.link));
    return 2;
  }
  while (server.commits_left > 0 || !server.serving) {
    if (wsync_engine_poll(server.link, server.serving ? 0 : -1) != 0)
      break;                           /* commands, between the steps */
    if (server.serving) server.step++; /* a step would read the weights */
  }
  printf("served %" PRIu64 " steps\n", server.step);
  wsync_engine_destroy(server.link);
  free(weights);
  return 0;
}
