// `wsync demo` in a build without the reference engine (WSYNC_BUILD_ENGINE=OFF): it says what is
// missing. demo.cc has the command itself.
#include <CLI/CLI.hpp>

#include "deploy/cli/commands.h"
#include "shared/command/outcome.h"

namespace wsync::cli {

void add_demo(CLI::App& app, Context& context) {
  CLI::App* command =
      add_command(app, context,
                  {.name = "demo",
                   .description = "Run a whole fleet on this machine (not part of this build)",
                   .examples = {"wsync demo"}});
  command->group("");       // not in the help
  command->allow_extras();  // the options of the command itself
  command->callback([&context] {
    context.run("demo", []() -> Result<Outcome> {
      return fail(ErrorCode::kNotFound,
                  "this build of wsync has no demonstration, because its fleet needs the program "
                  "wsync-engine (and with --train or --rl wsync-train); build wsync with "
                  "WSYNC_BUILD_ENGINE=ON and WSYNC_BUILD_TRAIN=ON");
    });
  });
}

}  // namespace wsync::cli
