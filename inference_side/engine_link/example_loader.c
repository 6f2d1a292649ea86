/* An engine whose controller and whose weights are in different threads, as they are in different
 * processes of most servers. The controller can pause and resume; it has no weights. The rank
 * borrows each version and hands it to a worker thread, which makes weights of its own from it: the
 * number of tensors and the exclusive or of all bytes. It takes any layout.
 * Usage: wsync_example_loader SOCKET REPLICA [REFUSED_TENSOR]
 * Serves until its standard input ends. A version with a tensor named REFUSED_TENSOR is refused. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wsync/engine.h>

enum { kMaxLayers = 4096 };

struct layer {
  size_t count;
  wsync_layer_tensor* tensors;
};

struct server {
  wsync_engine* controller;
  wsync_engine* rank;
  const char* refused_tensor;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  /* All below: protected by `mutex`. */
  struct layer layers[kMaxLayers];
  size_t layer_count;
  wsync_version loading;
  int is_complete; /* every layer has been passed */
  int is_over;
  unsigned char packed;
  uint64_t tensors;
};

/* ---- the controller's callbacks, on its link's thread ---- */

static int on_pause(void* user, const wsync_pause* pause) {
  struct server* server = user;
  printf("pauses for version %" PRIu32 ".%" PRIu64 " of %" PRIu64 " bytes\n", pause->version.epoch,
         pause->version.step, pause->bytes);
  fflush(stdout);
  /* A server would do this when its last step has ended, on every rank. */
  wsync_engine_report_paused(server->controller, 0);
  wsync_engine_report_paused(server->rank, 0);
  return 0;
}

static int on_resume(void* user) {
  struct server* server = user;
  wsync_engine_report_running(server->rank, 0);
  return 0;
}

/* ---- the rank's callbacks, on its link's thread ---- */

static int on_check_version(void* user, wsync_version version) {
  struct server* server = user;
  uint32_t count = 0;
  if (wsync_engine_tensor_count(server->rank, version, &count) != 0) return 1;
  for (uint32_t t = 0; server->refused_tensor != NULL && t < count; ++t) {
    wsync_tensor_info info;
    if (wsync_engine_tensor_info(server->rank, version, t, &info) != 0) return 1;
    if (strcmp(info.name, server->refused_tensor) != 0) continue;
    char sentence[256];
    snprintf(sentence, sizeof sentence, "this engine has no place for tensor %s", info.name);
    wsync_engine_fail(server->rank, sentence);
    return 1;
  }
  return 0;
}

static int on_load_begin(void* user, wsync_version version) {
  struct server* server = user;
  pthread_mutex_lock(&server->mutex);
  server->loading = version;
  /* What is left of a load that failed before its last layer. */
  while (server->layer_count > 0) free(server->layers[--server->layer_count].tensors);
  server->is_complete = 0;
  pthread_mutex_unlock(&server->mutex);
  return 0;
}

/* Keeps the pointers: they are valid until the commit is answered. */
static int on_load_layer(void* user, wsync_version version, uint32_t layer,
                         const wsync_layer_tensor* tensors, size_t count) {
  struct server* server = user;
  (void)version;
  if (layer >= kMaxLayers) return 1;
  wsync_layer_tensor* copy = malloc(count * sizeof *copy);
  if (copy == NULL) return 1;
  memcpy(copy, tensors, count * sizeof *copy);
  pthread_mutex_lock(&server->mutex);
  server->layers[server->layer_count++] = (struct layer){.count = count, .tensors = copy};
  /* The worker ends the load when it has seen every tensor of the version. */
  uint32_t all = 0;
  uint64_t passed = 0;
  for (size_t i = 0; i < server->layer_count; ++i) passed += server->layers[i].count;
  if (wsync_engine_tensor_count(server->rank, version, &all) == 0 && passed == all)
    server->is_complete = 1;
  pthread_cond_broadcast(&server->changed);
  pthread_mutex_unlock(&server->mutex);
  return WSYNC_LATER;
}

static int on_commit(void* user, wsync_version version) {
  struct server* server = user;
  pthread_mutex_lock(&server->mutex);
  printf("holds version %" PRIu32 ".%" PRIu64 ": %" PRIu64 " tensors, xor %02x\n", version.epoch,
         version.step, server->tensors, server->packed);
  fflush(stdout);
  pthread_mutex_unlock(&server->mutex);
  return 0;
}

/* ---- the worker's thread ---- */

static void* work(void* user) {
  struct server* server = user;
  pthread_mutex_lock(&server->mutex);
  while (!server->is_over) {
    if (!server->is_complete) {
      pthread_cond_wait(&server->changed, &server->mutex);
      continue;
    }
    server->packed = 0;
    server->tensors = 0;
    for (size_t i = 0; i < server->layer_count; ++i) {
      for (size_t t = 0; t < server->layers[i].count; ++t, ++server->tensors) {
        const unsigned char* bytes = server->layers[i].tensors[t].data;
        for (uint64_t at = 0; at < server->layers[i].tensors[t].bytes; ++at)
          server->packed ^= bytes[at];
      }
      free(server->layers[i].tensors);
    }
    server->layer_count = 0;
    server->is_complete = 0;
    wsync_engine_report_loaded(server->rank, server->loading, 0);
  }
  pthread_mutex_unlock(&server->mutex);
  return NULL;
}

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s SOCKET REPLICA [REFUSED_TENSOR]\n", argv[0]);
    return 2;
  }
  static struct server server = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                                 .changed = PTHREAD_COND_INITIALIZER};
  server.refused_tensor = argc > 3 ? argv[3] : NULL;
  const wsync_engine_options controller = {
      .socket_path = argv[1],
      .replica = argv[2],
      .world_size = 1,
      .leader = 1,
      .has_controller = 1,
      .callbacks = {.pause = on_pause, .resume = on_resume},
      .user = &server,
  };
  const wsync_engine_options rank = {
      .socket_path = argv[1],
      .replica = argv[2],
      .world_size = 1,
      .has_controller = 1,
      .take = WSYNC_TAKE_BORROW,
      .any_layout = 1,
      .callbacks = {.pause = on_pause,
                    .resume = on_resume,
                    .check_version = on_check_version,
                    .load_begin = on_load_begin,
                    .load_layer = on_load_layer,
                    .commit = on_commit},
      .user = &server,
  };
  server.controller = wsync_engine_create(&controller);
  server.rank = wsync_engine_create(&rank);
  pthread_t worker;
  if (wsync_engine_attach(server.controller) != 0 || wsync_engine_start(server.controller) != 0 ||
      wsync_engine_attach(server.rank) != 0 || wsync_engine_start(server.rank) != 0 ||
      pthread_create(&worker, NULL, work, &server) != 0) {
    fprintf(stderr, "%s%s\n", wsync_engine_error(server.controller),
            wsync_engine_error(server.rank));
    return 2;
  }
  while (getchar() != EOF) {
  }
  pthread_mutex_lock(&server.mutex);
  server.is_over = 1;
  pthread_cond_broadcast(&server.changed);
  pthread_mutex_unlock(&server.mutex);
  pthread_join(worker, NULL);
  wsync_engine_destroy(server.rank);
  wsync_engine_destroy(server.controller);
  return 0;
}
