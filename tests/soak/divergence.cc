#include "tests/soak/divergence.h"

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "shared/base/format.h"

namespace wsync::soak {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDivergencesTold = 8;

bool same_bits(double left, double right) {
  return std::bit_cast<std::uint64_t>(left) == std::bit_cast<std::uint64_t>(right);
}

bool same_step(const StepEvent& left, const StepEvent& right) {
  return same_bits(left.loss, right.loss) && same_bits(left.gradient_norm, right.gradient_norm);
}

std::string step_text(const StepEvent& step) {
  return fmt::format("loss {}, gradient norm {}", step.loss, step.gradient_norm);
}

// Returns the relative paths of all files below a directory.
Result<std::set<std::string>> files_below(const std::string& directory) {
  std::set<std::string> found;
  std::error_code error;
  for (fs::recursive_directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error))
    if (at->is_regular_file(error)) found.insert(at->path().lexically_relative(directory));
  if (error) return fail_errno(directory, error.value());
  return found;
}

// Returns the first difference, or std::nullopt if the files are equal.
Result<std::optional<std::string>> difference_of(const std::string& run,
                                                 const std::string& reference) {
  std::ifstream left(run, std::ios::binary), right(reference, std::ios::binary);
  if (!left || !right)
    return fail(ErrorCode::kIo, fmt::format("{}: cannot read it", left ? reference : run));
  constexpr std::size_t kChunk = 65'536;
  std::array<char, kChunk> ours{}, theirs{};
  for (std::uint64_t offset = 0;; offset += kChunk) {
    left.read(ours.data(), kChunk);
    right.read(theirs.data(), kChunk);
    if (left.bad() || right.bad())
      return fail(ErrorCode::kIo, fmt::format("{}: cannot read it", left.bad() ? run : reference));
    const std::streamsize count = std::min(left.gcount(), right.gcount());
    const auto differs = std::mismatch(ours.begin(), ours.begin() + count, theirs.begin());
    if (differs.first != ours.begin() + count)
      return fmt::format("differs from byte {} on",
                         offset + static_cast<std::uint64_t>(differs.first - ours.begin()));
    if (left.gcount() != right.gcount()) {
      const std::uint64_t end = offset + static_cast<std::uint64_t>(count);
      return left.gcount() < right.gcount() ? fmt::format("ends after {} bytes, too early", end)
                                            : fmt::format("does not end after {} bytes", end);
    }
    if (left.gcount() < static_cast<std::streamsize>(kChunk)) return std::nullopt;
  }
}

}  // namespace

void Divergence::add(std::string sentence) {
  ++count;
  if (told.size() < kDivergencesTold) told.push_back(std::move(sentence));
}

Divergence compare_steps(const std::vector<StepEvent>& run, const std::vector<StepEvent>& reference,
                         std::uint64_t last) {
  Divergence found;
  std::map<std::uint64_t, StepEvent> expected;
  for (const StepEvent& step : reference) expected.emplace(step.step, step);
  std::set<std::uint64_t> told;
  for (const StepEvent& step : run) {
    told.insert(step.step);
    const auto other = expected.find(step.step);
    if (other == expected.end()) continue;  // the loop below reports it if it is required
    ++found.compared;
    if (!same_step(step, other->second))
      found.add(fmt::format("step {}: {}; without kills {}", step.step, step_text(step),
                            step_text(other->second)));
  }
  for (std::uint64_t step = 1; step <= last; ++step) {
    if (!told.contains(step)) found.add(fmt::format("step {} was never told", step));
    if (!expected.contains(step))
      found.add(fmt::format("step {} was not told by the run without kills", step));
  }
  return found;
}

Result<Divergence> compare_states(const std::string& run, const std::string& reference) {
  const auto ours = WSYNC_TRY(files_below(run));
  const auto theirs = WSYNC_TRY(files_below(reference));
  for (const std::string_view name : kStateFiles)
    if (!theirs.contains(std::string(name)))
      return fail(ErrorCode::kNotFound,
                  fmt::format("{} has no {}: it is no state of a training run", reference, name));
  std::set<std::string> names = ours;
  names.insert(theirs.begin(), theirs.end());
  Divergence found{.compared = names.size()};
  for (const std::string& name : names) {
    if (!ours.contains(name) || !theirs.contains(name)) {
      found.add(fmt::format("{} was saved only by the run with{} kills", name,
                            ours.contains(name) ? "" : "out"));
      continue;
    }
    const auto differs = WSYNC_TRY(
        difference_of(fmt::format("{}/{}", run, name), fmt::format("{}/{}", reference, name)));
    if (differs) found.add(fmt::format("{} {}", name, *differs));
  }
  return found;
}

}  // namespace wsync::soak
