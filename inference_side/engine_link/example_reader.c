/* Reads each version that the replicas of a host serve, and is no engine: prints its name, the
 * number of its tensors, and the exclusive or of all bytes.
 * Usage: wsync_example_reader SOCKET COUNT [STEP]
 * Ends after COUNT versions. With STEP: reads the staged version of that step, COUNT times. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <wsync/reader.h>

static int print_version(wsync_reader* reader, wsync_version version) {
  uint32_t count = 0;
  unsigned char packed = 0;
  if (wsync_reader_count(reader, &count) != 0) return 1;
  for (uint32_t t = 0; t < count; ++t) {
    wsync_tensor_info info;
    const void* data = NULL;
    if (wsync_reader_tensor(reader, t, &info, &data) != 0) return 1;
    for (uint64_t i = 0; i < info.bytes; ++i) packed ^= ((const unsigned char*)data)[i];
  }
  printf("read version %" PRIu32 ".%" PRIu64 ": %" PRIu32 " tensors, xor %02x\n", version.epoch,
         version.step, count, packed);
  fflush(stdout);
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "Usage: wsync_example_reader SOCKET COUNT [STEP]\n");
    return 2;
  }
  wsync_reader* reader = wsync_reader_create(argv[1], "example");
  if (reader == NULL) {
    fprintf(stderr, "%s is no path for a socket\n", argv[1]);
    return 2;
  }
  wsync_reader_want want = {0};
  if (argc > 3) {
    want.has_step = 1;
    want.step = strtoull(argv[3], NULL, 10);
  }
  int failed = 0;
  for (long i = strtol(argv[2], NULL, 10); i > 0 && !failed; --i) {
    wsync_version version;
    failed = wsync_reader_open(reader, &want, -1, &version) != 0 || print_version(reader, version);
    wsync_reader_close(reader);
    want.after = version; /* the next one */
  }
  if (failed) fprintf(stderr, "%s\n", wsync_reader_error(reader));
  wsync_reader_destroy(reader);
  return failed;
}
