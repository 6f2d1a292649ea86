// Entry point of `wsync-engine`.
#include <csignal>

#include "inference_side/reference_engine/engine_command.h"

int main(int argc, char** argv) {
  // Ignore the signal, so that a write beyond the file size limit fails with an error message and
  // does not kill the process.
  std::signal(SIGXFSZ, SIG_IGN);
  return wsync::cli::run_program(wsync::cli::engine_program(), argc, argv);
}
