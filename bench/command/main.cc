// `wsync-bench`.
#include <csignal>

#include "bench/command/bench_command.h"

int main(int argc, char** argv) {
  // A file over the process's limit is a failed write with a sentence, not the end of a process.
  std::signal(SIGXFSZ, SIG_IGN);
  return wsync::cli::run_program(wsync::cli::bench_program(), argc, argv);
}
