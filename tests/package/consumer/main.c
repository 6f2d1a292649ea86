/* A program of somebody else, with both C APIs. Says what they answer; ends with 0. */
#include <stdio.h>
#include <wsync/engine.h>
#include <wsync/trainer.h>

int main(void) {
  const char* settings[] = {"bucket_byte=1MiB"};
  const wsync_trainer_options trainer_options = {.settings = settings, .setting_count = 1};
  wsync_trainer* trainer = NULL;
  const wsync_code code = wsync_trainer_create(&trainer_options, &trainer);
  printf("trainer: %d %s\n", code, wsync_trainer_error());
  const wsync_engine_options engine_options = {.socket_path = "/nowhere"};
  wsync_engine* engine = wsync_engine_create(&engine_options);
  printf("engine: %s\n", engine == NULL ? "refused" : "made");
  return code == WSYNC_INVALID_INPUT && trainer == NULL && engine == NULL ? 0 : 1;
}
