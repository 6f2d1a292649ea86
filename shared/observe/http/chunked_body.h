// ChunkedBody: decodes a body in chunked transfer coding (RFC 9112, section 7.1). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace wsync::http {

inline constexpr std::size_t kMaxChunkLineBytes = 256;             // chunk size and its extensions
inline constexpr std::size_t kMaxChunkOverheadBytes = 16'777'216;  // all chunk lines of one body

class ChunkedBody {
 public:
  enum class State : std::uint8_t { kMore, kEnd, kTooLarge, kBad };

  explicit ChunkedBody(std::uint64_t limit) : limit_(limit) {}

  // Decodes received bytes and appends the content to `body`. Returns how many bytes of `wire`
  // belong to this body: all of them while state() is kMore.
  std::size_t take(std::string_view wire, std::string& body);
  // kTooLarge: the announced content exceeds the limit, or the chunk lines exceed
  // kMaxChunkOverheadBytes.
  [[nodiscard]] State state() const noexcept { return state_; }

 private:
  enum class Part : std::uint8_t { kSize, kData, kDataEnd, kTrailer };
  void take_line(std::string_view line);
  void take_size(std::string_view line);

  std::uint64_t limit_;
  State state_ = State::kMore;
  Part part_ = Part::kSize;
  std::string line_;         // incomplete chunk line
  std::uint64_t left_ = 0;   // bytes left in the chunk
  std::uint64_t total_ = 0;  // sum of all announced chunk sizes
  std::uint64_t overhead_ = 0;
};

}  // namespace wsync::http
