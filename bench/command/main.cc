// `wsync-bench`.
#include <csignal>

#include "bench/command/bench_command.h"

int main(int argc, char** argv) {
  // Ignored, so that a file over the process's limit is a failed write with an error instead of the
  // end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  return wsync::cli::run_program(wsync::cli::bench_program(), argc, argv);
}
