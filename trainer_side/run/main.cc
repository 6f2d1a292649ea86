// Entry point of `wsync-train`.
#include <csignal>

#include "trainer_side/run/train_command.h"

int main(int argc, char** argv) {
  // If a file exceeds the process's limit, the write must fail with an error. By default SIGXFSZ
  // would end the process.
  std::signal(SIGXFSZ, SIG_IGN);
  return wsync::cli::run_program(wsync::cli::training_program(), argc, argv);
}
