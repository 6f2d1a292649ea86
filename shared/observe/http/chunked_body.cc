#include "shared/observe/http/chunked_body.h"

#include <algorithm>
#include <charconv>

namespace wsync::http {

std::size_t ChunkedBody::take(std::string_view wire, std::string& body) {
  std::size_t used = 0;
  while (used < wire.size() && state_ == State::kMore) {
    if (part_ == Part::kData) {
      const std::string_view piece =
          wire.substr(used, static_cast<std::size_t>(std::min<std::uint64_t>(left_, wire.size())));
      body += piece;
      used += piece.size();
      left_ -= piece.size();
      if (left_ == 0) part_ = Part::kDataEnd;
      continue;
    }
    const char c = wire[used++];
    line_ += c;
    if (++overhead_ > kMaxChunkOverheadBytes) state_ = State::kTooLarge;
    if (c != '\n') {
      if (line_.size() > kMaxChunkLineBytes) state_ = State::kBad;
      continue;
    }
    if (line_.size() < 2 || line_[line_.size() - 2] != '\r')
      state_ = State::kBad;
    else
      take_line(std::string_view(line_).substr(0, line_.size() - 2));
    line_.clear();
  }
  return used;
}

void ChunkedBody::take_line(std::string_view line) {
  switch (part_) {
    case Part::kSize:
      take_size(line);
      break;
    case Part::kDataEnd:
      if (!line.empty()) state_ = State::kBad;
      part_ = Part::kSize;
      break;
    case Part::kTrailer:
      if (line.empty()) state_ = State::kEnd;
      break;
    case Part::kData:
      break;
  }
}

void ChunkedBody::take_size(std::string_view line) {
  const std::string_view digits = line.substr(0, line.find_first_of("; \t"));
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), left_, 16);
  if (digits.empty() || end != digits.data() + digits.size() ||
      (error != std::errc() && error != std::errc::result_out_of_range)) {
    state_ = State::kBad;
  } else if (error == std::errc::result_out_of_range || left_ > limit_ - total_) {
    state_ = State::kTooLarge;
  } else {
    total_ += left_;
    part_ = left_ == 0 ? Part::kTrailer : Part::kData;
  }
}

}  // namespace wsync::http
