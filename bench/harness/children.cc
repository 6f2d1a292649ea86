#include "bench/harness/children.h"

#include <unistd.h>
#include <vector>

namespace wsync::bench {

Result<std::unique_ptr<cli::ChildProcesses>> bench_children(const std::string& directory) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return cli::ChildProcesses::create(directory, std::move(environment), {});
}

}  // namespace wsync::bench
