// ChunkedBody: a body in chunks (RFC 9112, 7.1) as it comes off the wire. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace wsync::http {

inline constexpr std::size_t kMaxChunkLineBytes = 256;             // a size with its extensions
inline constexpr std::size_t kMaxChunkOverheadBytes = 16'777'216;  // of all lines of a body

class ChunkedBody {
 public:
  enum class State : std::uint8_t { kMore, kEnd, kTooLarge, kBad };

  explicit ChunkedBody(std::uint64_t limit) : limit_(limit) {}

  // Adds what is on the wire. Returns how many bytes of it belong to the body: all, until state()
  // is another than kMore.
  std::size_t take(std::string_view wire, std::string& body);
  // kTooLarge: more than the limit is announced, or lines of kMaxChunkOverheadBytes.
  [[nodiscard]] State state() const noexcept { return state_; }

 private:
  enum class Part : std::uint8_t { kSize, kData, kDataEnd, kTrailer };
  void take_line(std::string_view line);
  void take_size(std::string_view line);

  std::uint64_t limit_;
  State state_ = State::kMore;
  Part part_ = Part::kSize;
  std::string line_;         // the beginning of one
  std::uint64_t left_ = 0;   // bytes of the chunk
  std::uint64_t total_ = 0;  // of all chunks that were announced
  std::uint64_t overhead_ = 0;
};

}  // namespace wsync::http
