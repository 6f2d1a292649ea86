#include "inference_side/sidecar/readback.h"

#include <algorithm>
#include <utility>

#include "inference_side/reload/load_plan.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/config/units.h"

namespace wsync::agent {
namespace {

// Engines answer in the order of their hello, which is the order of the plan. Try the expected
// index first, because a search for each tensor would be quadratic.
const control::HeldTensor* answer_for(const std::vector<control::HeldTensor>& found,
                                      std::size_t expected_at, const std::string& name) {
  if (expected_at < found.size() && found[expected_at].name == name) return &found[expected_at];
  const auto at = std::find_if(found.begin(), found.end(),
                               [&](const auto& candidate) { return candidate.name == name; });
  return at == found.end() ? nullptr : &*at;
}

bool is_staged_right(const staging::HeldVersion& held, const reload::LoadTensor& tensor) {
  const std::uint64_t bytes = held.manifest()->byte_size(tensor.manifest_index);
  return tensor_digest(tensor.seed, held.data().subspan(tensor.arena_offset, bytes)) ==
         held.digests().tensors[tensor.manifest_index];
}

// `difference`: what is found first.
void compare(const staging::HeldVersion& held, const std::vector<control::EngineTensor>& tensors,
             const std::vector<control::HeldTensor>& found, control::VerifyRank& verdict,
             ReadDifference& difference) {
  const auto plan = reload::LoadPlan::make(*held.manifest(), *held.plan(), tensors);
  if (!plan) {
    verdict.failure = plan.error().message();
    verdict.is_unreadable = false;
    return;
  }
  for (std::size_t i = 0; i < plan->tensors().size(); ++i) {
    const reload::LoadTensor& tensor = plan->tensors()[i];
    const std::string& name = held.manifest()->tensor(tensor.manifest_index).name;
    const control::HeldTensor* answer = answer_for(found, i, name);
    if (answer == nullptr && verdict.is_unreadable) continue;
    const Digest expected = reload::expected_digest(tensor, held.data());
    ++verdict.tensors;
    verdict.bytes += tensor.shard.bytes();
    const bool is_equal =
        answer != nullptr && (answer->digest == expected || planted("readback_not_compared"));
    if (is_equal) continue;
    verdict.mismatches.push_back({.tensor = name,
                                  .expected = expected,
                                  .found = answer == nullptr ? Digest{} : answer->digest});
    if (!difference.what.empty()) continue;
    difference.what = fmt::format(
        "rank {}: its bytes of tensor {} are not those of {}: expected digest {}, found {}",
        verdict.rank, name, held.version().to_string(), expected.to_string(),
        answer == nullptr ? "none" : answer->digest.to_string());
    difference.is_copy_suspect = !is_staged_right(held, tensor);
  }
}

std::string silence_text(const EngineRank& rank) {
  return fmt::format("it {}; {}, and verify again", rank.silence, rank.remedy_text());
}

}  // namespace

void Readback::begin(const std::vector<std::shared_ptr<EngineRank>>& ranks,
                     std::chrono::milliseconds deadline, OnDone on_done) {
  if (round_) {
    round_->on_done.push_back(std::move(on_done));
    return;
  }
  round_ = std::make_unique<Round>();
  round_->on_done.push_back(std::move(on_done));
  for (const auto& rank : ranks) {
    if (!rank->attached) continue;
    if (!rank->silence.empty()) {
      add_failure(*rank, silence_text(*rank));
      continue;
    }
    round_->waiting.push_back(rank);
    rank->send(0, control::ReadDigests{});
  }
  round_->deadline = std::make_unique<Timer>(loop_, [this, deadline] {
    for (const auto& rank : std::exchange(round_->waiting, {}))
      add_failure(*rank, fmt::format("{} polls its link, but has not read back its weights within "
                                     "{}; verify again when it has less to do",
                                     rank->process_text(), config::format_duration(deadline)));
    finish();
  });
  round_->deadline->start(deadline);
  finish();
}

void Readback::add_failure(const EngineRank& rank, std::string why) {
  round_->ranks.push_back({.replica = rank.replica, .rank = rank.rank, .failure = std::move(why)});
}

void Readback::finish() {
  if (!round_ || !round_->waiting.empty()) return;
  const std::shared_ptr<Round> done = std::move(round_);
  done->deadline->stop();
  std::sort(done->ranks.begin(), done->ranks.end(), [](const auto& a, const auto& b) {
    return std::tie(a.replica, a.rank) < std::tie(b.replica, b.rank);
  });
  loop_.post([done] {
    for (const auto& call : done->on_done) call(done->ranks);
  });
}

void Readback::lost(const std::shared_ptr<EngineRank>& rank, const Error& error) {
  if (!round_ || std::erase(round_->waiting, rank) == 0) return;
  add_failure(*rank, "the rank was lost: " + error.message());
  finish();
}

void Readback::silenced(const std::shared_ptr<EngineRank>& rank) {
  if (!round_ || round_->compared.contains(rank.get())) return;
  if (std::erase(round_->waiting, rank) == 0) return;
  add_failure(*rank, silence_text(*rank));
  finish();
}

void Readback::answered(const std::shared_ptr<EngineRank>& rank, control::Digests digests,
                        const std::shared_ptr<const staging::HeldVersion>& held) {
  if (!round_ ||
      std::find(round_->waiting.begin(), round_->waiting.end(), rank) == round_->waiting.end())
    return;
  round_->compared.insert(rank.get());
  auto verdict = std::make_shared<control::VerifyRank>();
  verdict->replica = rank->replica;
  verdict->rank = rank->rank;
  verdict->version = digests.version;
  auto difference = std::make_shared<ReadDifference>();
  difference->read = now();
  const auto finish_rank = [this, alive = alive_, rank, verdict, difference] {
    if (!*alive) return;
    // Whether anybody still waits for the answer or not.
    if (!verdict->mismatches.empty() && rank->attached)
      verdict->follows = on_differs_(*rank, *difference);
    if (!round_ || std::erase(round_->waiting, rank) == 0) return;
    round_->ranks.push_back(std::move(*verdict));
    finish();
  };
  verdict->is_controller = rank->is_controller;
  // With digests: of the tensors that could be read. These are compared all the same.
  verdict->failure = digests.failure;
  verdict->is_unreadable = digests.is_unreadable && !digests.failure.empty();
  if (!digests.failure.empty() && digests.tensors.empty()) {
    finish_rank();
    return;
  }
  if (!held) {
    verdict->is_unreadable = false;
    verdict->failure =
        digests.version.none()
            ? "the rank has no version"
            : fmt::format("the rank has {}, whose bytes are no longer staged on this sidecar",
                          digests.version.to_string());
    finish_rank();
    return;
  }
  const auto submitted = worker_.submit(
      [verdict, difference, held, tensors = rank->any_layout ? nullptr : rank->tensors,
       found = std::move(digests.tensors)] {
        compare(*held, tensors ? *tensors : reload::whole_tensors(*held->manifest()), found,
                *verdict, *difference);
      },
      finish_rank);
  if (!submitted) {
    verdict->failure = submitted.error().message();
    verdict->is_unreadable = false;
    finish_rank();
  }
}

}  // namespace wsync::agent
