#include <csignal>

#include "deploy/cli/app.h"

int main(int argc, char** argv) {
  // A file over the process's limit is a failed write with a sentence, not the end of an agent.
  std::signal(SIGXFSZ, SIG_IGN);
  return wsync::cli::run_app(argc, argv);
}
