// `wsync`: the service and its commands.
#include <csignal>

#include "deploy/cli/commands.h"

int main(int argc, char** argv) {
  // A write over the file size limit (RLIMIT_FSIZE) then fails with an error. By default SIGXFSZ
  // would end the process.
  std::signal(SIGXFSZ, SIG_IGN);
  return wsync::cli::run_program(wsync::cli::service_program(), argc, argv);
}
