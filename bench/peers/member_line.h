// Messages from the processes of a peer to the benchmark: one JSON object per line. The programs
// use other projects' libraries, so their output is not trusted.
//
//   {"event": "ready", "rank": 1}
//   {"event": "done", "rank": 1, "digest": "32 hex digits"}
//   {"event": "failed", "rank": 1, "why": "a sentence"}
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "shared/base/digest.h"
#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr std::size_t kMemberLineBytesMax = 4096;

enum class MemberEvent : std::uint8_t { kReady, kDone, kFailed };

struct MemberLine {
  MemberEvent event = MemberEvent::kReady;
  unsigned rank = 0;  // 0: the trainer
  Digest digest;      // for done: digest of the model in its memory, see ModelSource
  // for done of a copier: times of its copy on the monotonic clock; otherwise 0
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::string why;  // for failed
};

// `ranks`: number of ranks. kInvalidInput, naming the field, what was expected and what was found,
// in these cases: no object, an unknown event, a rank that does not exist, a number that is
// negative or not finite, or a missing or invalid digest.
[[nodiscard]] Result<MemberLine> parse_member_line(std::string_view line, unsigned ranks);

// The line of a copier's answer, in the form that parse_member_line() reads.
[[nodiscard]] std::string member_text(const MemberLine& line);

}  // namespace wsync::bench
