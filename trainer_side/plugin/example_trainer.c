/* The smallest trainer: one BF16 tensor, published after every step. The configuration sets the
 * address to which sidecars connect (WSYNC_RUN_DIR, or a YAML file).
 * Usage: wsync_example_trainer TENSOR ROWS COLUMNS [STEPS]
 * Exits with 0 after the engines have served STEPS (default 2) versions. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <wsync/trainer.h>

static int give_up(const char* what, wsync_trainer* trainer) {
  fprintf(stderr, "%s: %s\n", what, wsync_trainer_error());
  wsync_trainer_destroy(trainer); /* removes its sockets; NULL is allowed */
  return 1;
}

static void train(uint16_t* weights, uint64_t count, uint64_t step) {
  for (uint64_t i = 0; i < count; i++) weights[i] = (uint16_t)(i * 31 + step * 7919);
}

int main(int argc, char** argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: %s TENSOR ROWS COLUMNS [STEPS]\n", argv[0]);
    return 2;
  }
  const uint64_t shape[2] = {strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10)};
  const uint64_t steps = argc > 4 ? strtoull(argv[4], NULL, 10) : 2;
  uint16_t* weights = calloc(shape[0] * shape[1], sizeof *weights);
  const char* settings[] = {"bucket_bytes=8MiB"};
  const wsync_trainer_options options = {.settings = settings, .setting_count = 1};
  const wsync_trainer_tensor tensor = {
      .name = argv[1], .dtype = "BF16", .shape = shape, .shape_count = 2, .data = weights};

  wsync_trainer* trainer = NULL;
  if (weights == NULL || wsync_trainer_create(&options, &trainer) != WSYNC_OK ||
      wsync_trainer_add_tensor(trainer, &tensor) != WSYNC_OK ||
      wsync_trainer_start(trainer) != WSYNC_OK)
    return give_up("start", trainer);
  wsync_publish publish = 0;
  wsync_publish_status status;
  for (uint64_t step = 1; step <= steps; step++) {
    train(weights, shape[0] * shape[1], step);
    /* Returns when the weights may change again. The version is transferred during training. */
    if (wsync_trainer_publish(trainer, step, &publish) != WSYNC_OK)
      return give_up("publish", trainer);
    if (wsync_trainer_wait(trainer, publish, WSYNC_PUBLISH_COMMITTED, 60000, &status) != WSYNC_OK)
      return give_up("wait", trainer);
    printf("%" PRIu32 " replicas serve version %" PRIu32 ".%" PRIu64 ", digest %016" PRIx64
           "%016" PRIx64 "\n",
           status.replicas, status.version.epoch, status.version.step, status.content_digest[1],
           status.content_digest[0]);
  }
  wsync_trainer_destroy(trainer);
  free(weights);
  return 0;
}
