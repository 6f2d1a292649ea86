#include "inference_side/engine_link/engine_scrub.h"

#include <algorithm>
#include <span>
#include <utility>

#include "inference_side/engine_link/scrubber.h"
#include "shared/base/planted.h"

namespace wsync::engine {

void EngineScrub::begin(ScrubPass pass, std::uint32_t share_ppm) {
  drop();
  pass_.emplace(std::move(pass));
  share_ppm_ = share_ppm;
}

void EngineScrub::end(std::string why) {
  if (!pass_) return;
  const std::uint64_t pass = pass_->number();
  drop();
  failure_ = control::Scrubbed{.pass = pass, .failure = std::move(why)};
}

void EngineScrub::drop() {
  pass_.reset();
  failure_.reset();
  is_reported_ = false;
  used_ = {};
  std::vector<std::byte>().swap(buffer_);
}

std::optional<TimePoint> EngineScrub::due() const {
  if (!pass_ || pass_->complete()) return std::nullopt;
  if (!serving_ && !planted("scrub_reads_from_a_paused_engine")) return std::nullopt;
  return planted("scrub_takes_all_time") ? TimePoint{} : due_;
}

void EngineScrub::read(const std::function<bool()>& has_event) {
  const auto due_now = due();
  const TimePoint begin = clock_();
  if (!due_now || begin < *due_now) return;
  std::chrono::nanoseconds taken{0};
  Result<> outcome;
  do {
    outcome = read_block();
    taken = clock_() - begin;
  } while (outcome && !pass_->complete() && taken < kBurst && !has_event());
  used_ += taken;
  due_ = next_burst(begin, taken, share_ppm_);
  if (!outcome) end(outcome.error().message());
}

Result<> EngineScrub::read_block() {
  const ScrubPass::Next block = pass_->next();
  buffer_.resize(std::max<std::size_t>(buffer_.size(), block.bytes));
  const auto bytes = std::span(buffer_).first(block.bytes);
  // What an engine does not write must not be what it has returned for another block.
  std::ranges::fill(bytes, std::byte{0});
  WSYNC_TRY(engine_.read_tensor(block.tensor, block.offset, bytes));
  pass_->add(bytes);
  return {};
}

std::optional<control::Scrubbed> EngineScrub::take_report() {
  if (failure_) return std::exchange(failure_, std::nullopt);
  if (!serving_ || !pass_ || !pass_->complete() || is_reported_) return std::nullopt;
  is_reported_ = true;
  return scrubbed_by(*pass_, used_, clock_());
}

}  // namespace wsync::engine
