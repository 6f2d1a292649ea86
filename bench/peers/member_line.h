// What the processes of a peer say to the benchmark: one JSON object a line. They are programs of
// others' libraries, so nothing of it is trusted.
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
  unsigned rank = 0;          // 0: the trainer
  Digest digest;              // done: of the model in its memory, see ModelSource
  std::int64_t begin_ns = 0;  // done, of a copier: its copy alone, by the monotonic clock; else 0
  std::int64_t end_ns = 0;
  std::string why;  // failed
};

// `ranks`: how many there are. kInvalidInput, naming the field, what was expected and what was
// found: no object, an unknown event, a rank that does not exist, a number that is not finite or
// negative, a digest that is missing or is none.
[[nodiscard]] Result<MemberLine> parse_member_line(std::string_view line, unsigned ranks);

// Of a copier's answer; as parse_member_line() reads it.
[[nodiscard]] std::string member_text(const MemberLine& line);

}  // namespace wsync::bench
