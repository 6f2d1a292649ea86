#pragma once

#include "shared/base/error.h"

namespace wsync::cli {

// Exit codes, documented in deploy/cli/README.md.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,       // a check, a verification or an update failed, or was refused
  kExitBadInput = 2,     // invalid arguments, config or checkpoint
  kExitUnreachable = 3,  // no peer, or no reply before the deadline
  kExitNotVerified = 4,  // `verify`: nothing differs, but a rank cannot return what it holds
  kExitInterrupted = 130,
};
[[nodiscard]] ExitCode exit_code_of(ErrorCode code) noexcept;

}  // namespace wsync::cli
