// `wsync-engine`.
#include <csignal>

#include "inference_side/reference_engine/engine_command.h"

int main(int argc, char** argv) {
  // A file over the process's limit is a failed write with a sentence, not the end of a process.
  std::signal(SIGXFSZ, SIG_IGN);
  return wsync::cli::run_program(wsync::cli::engine_program(), argc, argv);
}
