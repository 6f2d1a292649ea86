// `wsync`: the service and its commands.
#include <csignal>

#include "deploy/cli/commands.h"

int main(int argc, char** argv) {
  // A file over the process's limit is a failed write with a sentence, not the end of an agent.
  std::signal(SIGXFSZ, SIG_IGN);
  return wsync::cli::run_program(wsync::cli::service_program(), argc, argv);
}
