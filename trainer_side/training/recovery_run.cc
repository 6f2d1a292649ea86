#include "trainer_side/training/recovery_run.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "shared/base/digest.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/manifest.h"

namespace wsync::training {
namespace {

// What a rank sends to all others.
struct Sign {
  std::uint64_t step = 0;
  std::uint32_t phase = 0;
  std::uint32_t has_gradients = 0;
  std::uint64_t passed = 0;  // the step of `result`; 0 if none
  StepResult result;
};
static_assert(std::is_trivially_copyable_v<Sign>);

Sign sign_of(TrainingRank& rank) {
  const Update::Progress& progress = rank.update().progress();
  return {.step = rank.tag().step,
          .phase = static_cast<std::uint32_t>(rank.tag().phase),
          .has_gradients = progress.reduced != 0 && progress.reduced == rank.tag().step ? 1U : 0U,
          .passed = progress.passed,
          .result = progress.result};
}

Result<std::vector<RankState>> states_of(const std::vector<Sign>& signs) {
  std::vector<RankState> states;
  for (std::size_t rank = 0; rank < signs.size(); ++rank) {
    const Sign& sign = signs[rank];
    if (sign.phase > static_cast<std::uint32_t>(Phase::kUpdate))
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("rank {} reports phase {}, which does not exist; start all ranks "
                              "with the same version of wsync",
                              rank, sign.phase));
    states.push_back({.tag = {.step = sign.step, .phase = static_cast<Phase>(sign.phase)},
                      .has_gradients = sign.has_gradients != 0});
  }
  return states;
}

std::optional<StepResult> result_of(const std::vector<Sign>& signs, std::uint64_t step) {
  for (const Sign& sign : signs)
    if (step > 0 && sign.passed == step) return sign.result;
  return {};
}

// The shards that one rank sends to another. Both ranks build the same description.
struct Cargo {
  Manifest manifest;
  BucketPlan plan;
  std::vector<std::span<std::byte>> tensors;  // in the order of the manifest

  [[nodiscard]] Result<Digest> content() const {
    ContentDigester digester(manifest);
    for (std::uint32_t i = 0; i < tensors.size(); ++i) WSYNC_TRY(digester.add(i, 0, tensors[i]));
    const auto digests = WSYNC_TRY(digester.finish());
    return digests.root;
  }
  [[nodiscard]] std::span<std::byte> bytes_of(const Piece& piece) const {
    return tensors[piece.tensor].subspan(piece.tensor_offset, piece.bytes);
  }
};

Result<Cargo> cargo_of(TrainingRank& rank, const std::vector<Transfer>& transfers,
                       std::uint64_t bucket_bytes) {
  std::vector<TensorInfo> infos;
  std::vector<std::pair<std::string, std::span<float>>> named;
  const auto add = [&](std::string name, std::span<float> values) {
    infos.push_back({.name = name, .dtype = DType::kF32, .shape = {values.size()}});
    named.emplace_back(std::move(name), values);
  };
  for (const Transfer& transfer : transfers) {
    Shard& shard = rank.update().shards()[static_cast<std::size_t>(transfer.array)];
    const std::string prefix = fmt::format(
        "{}.shard_{}.", transfer.array == Array::kDense ? "dense" : "experts", transfer.member);
    const std::size_t begin = shard.cuts[transfer.member];
    add(prefix + "weights",
        shard.weights->all().subspan(begin, shard.cuts[transfer.member + 1] - begin));
    if (!transfer.with_state) continue;
    HeldPart* const held = shard.held_of(transfer.member);
    if (held == nullptr)
      return fail(ErrorCode::kInternal,
                  fmt::format("rank {} holds no state of {}; set second_holders on all ranks",
                              rank.place().rank, prefix));
    add(prefix + "mean", held->mean);
    add(prefix + "variance", held->variance);
  }
  auto manifest = WSYNC_TRY(Manifest::create(std::move(infos)));
  auto plan = WSYNC_TRY(BucketPlan::create(manifest, bucket_bytes));
  Cargo cargo{.manifest = std::move(manifest), .plan = std::move(plan), .tensors = {}};
  cargo.tensors.resize(named.size());
  for (const auto& [name, values] : named)
    cargo.tensors[*cargo.manifest.find(name)] = std::as_writable_bytes(values);
  return cargo;
}

// Sends `out` to one rank and receives `in` from another at the same time: buckets in order, each
// preceded by its digest. Either side may have no bucket.
class Swap {
 public:
  struct Ranks {
    std::uint32_t own = 0;
    std::uint32_t to = 0;
    std::uint32_t from = 0;
  };
  Swap(TrainingRank& rank, collective::ProcessGroup& group, const Ranks& ranks, Cargo out, Cargo in)
      : deadline_(rank.options().deadline),
        group_(group),
        ranks_(ranks),
        out_(std::move(out)),
        in_(std::move(in)),
        sent_(out_.plan.largest_bucket()),
        received_(in_.plan.largest_bucket()) {}

  [[nodiscard]] Result<> run() {
    WSYNC_TRY(swap_notes());
    const std::size_t rounds = std::max(out_.plan.bucket_count(), in_.plan.bucket_count());
    for (std::size_t bucket = 0; bucket < rounds; ++bucket) WSYNC_TRY(swap_bucket(bucket));
    if (in_.tensors.empty()) return {};
    const auto content = WSYNC_TRY(in_.content());
    if (content != theirs_.content)
      return mismatch("the set of all tensors", content, theirs_.content);
    return {};
  }

 private:
  struct Note {
    Digest layout, content;
  };

  [[nodiscard]] Result<> exchange(std::span<const std::span<const std::byte>> send,
                                  std::span<const std::span<std::byte>> receive) {
    std::vector<collective::Send> sends;
    std::vector<collective::Receive> receives;
    for (const auto& bytes : send) sends.push_back({.to = ranks_.to, .bytes = bytes});
    for (const auto& bytes : receive) receives.push_back({.from = ranks_.from, .bytes = bytes});
    return group_.exchange(sends, receives, now() + deadline_);
  }

  [[nodiscard]] Result<> swap_notes() {
    Note ours;
    std::vector<std::span<const std::byte>> send;
    std::vector<std::span<std::byte>> receive;
    if (!out_.tensors.empty()) {
      const auto content = WSYNC_TRY(out_.content());
      ours = {.layout = out_.manifest.layout_digest(), .content = content};
      send.push_back(std::as_bytes(std::span(&ours, 1)));
    }
    if (!in_.tensors.empty()) receive.push_back(std::as_writable_bytes(std::span(&theirs_, 1)));
    WSYNC_TRY(exchange(send, receive));
    if (!in_.tensors.empty() && theirs_.layout != in_.manifest.layout_digest())
      return mismatch("the list of tensors", in_.manifest.layout_digest(), theirs_.layout);
    return {};
  }

  [[nodiscard]] Result<> swap_bucket(std::size_t bucket) {
    Digest sent;
    Digest promised;
    std::vector<std::span<const std::byte>> send;
    std::vector<std::span<std::byte>> receive;
    if (bucket < out_.plan.bucket_count()) {
      const auto bytes = std::span(sent_).first(out_.plan.bucket_size(bucket));
      std::fill(bytes.begin(), bytes.end(), std::byte{});
      for (const Piece& piece : out_.plan.bucket(bucket))
        std::memcpy(bytes.data() + piece.buffer_offset, out_.bytes_of(piece).data(), piece.bytes);
      sent = digest_of(bytes);
      send = {std::as_bytes(std::span(&sent, 1)), bytes};
    }
    const bool takes = bucket < in_.plan.bucket_count();
    const auto taken = std::span(received_).first(takes ? in_.plan.bucket_size(bucket) : 0);
    if (takes) receive = {std::as_writable_bytes(std::span(&promised, 1)), taken};
    WSYNC_TRY(exchange(send, receive));
    if (!takes) return {};
    if (const Digest found = digest_of(taken);
        found != promised && !planted("recovery_bucket_not_compared"))
      return mismatch(fmt::format("bucket {} of {}", bucket, in_.plan.bucket_count()), found,
                      promised);
    for (const Piece& piece : in_.plan.bucket(bucket))
      std::memcpy(in_.bytes_of(piece).data(), taken.data() + piece.buffer_offset, piece.bytes);
    return {};
  }

  [[nodiscard]] Result<> mismatch(const std::string& what, const Digest& found,
                                  const Digest& expected) const {
    return fail(
        ErrorCode::kDigestMismatch,
        fmt::format("rank {} received weights and state from rank {}: {} has digest {}, expected "
                    "{}; recover again",
                    ranks_.own, ranks_.from, what, found.to_string(), expected.to_string()));
  }

  const std::chrono::milliseconds deadline_;
  collective::ProcessGroup& group_;
  const Ranks ranks_;
  const Cargo out_, in_;
  Bytes sent_, received_;
  Note theirs_;
};

Result<std::vector<Sign>> gather_signs(TrainingRank& rank, collective::ProcessGroup& group) {
  std::vector<Sign> signs(group.size());
  signs[group.rank()] = sign_of(rank);
  std::vector<std::uint32_t> everyone;
  std::vector<std::span<std::byte>> parts;
  for (std::uint32_t other = 0; other < signs.size(); ++other) {
    everyone.push_back(other);
    parts.push_back(std::as_writable_bytes(std::span(&signs[other], 1)));
  }
  WSYNC_TRY(collective::all_gather(collective::Team(&group, std::move(everyone)), parts,
                                   now() + rank.options().deadline));
  return signs;
}

// Executes the transfers in rounds. In each round a rank sends to at most one rank and receives
// from at most one. Returns the number of bytes that this rank has sent.
Result<std::uint64_t> give(TrainingRank& rank, collective::ProcessGroup& group,
                           const std::vector<Transfer>& transfers, std::uint64_t bucket_bytes) {
  std::uint64_t given = 0;
  const std::uint32_t own = group.rank();
  const std::uint32_t size = group.size();
  const auto between = [&](std::uint32_t from, std::uint32_t to) {
    std::vector<Transfer> found;
    for (const Transfer& one : transfers)
      if (one.from == from && one.to == to) found.push_back(one);
    return found;
  };
  for (std::uint32_t by = 1; by < size; ++by) {
    const Swap::Ranks ranks{.own = own, .to = (own + by) % size, .from = (own + size - by) % size};
    auto out = WSYNC_TRY(cargo_of(rank, between(own, ranks.to), bucket_bytes));
    auto in = WSYNC_TRY(cargo_of(rank, between(ranks.from, own), bucket_bytes));
    if (out.tensors.empty() && in.tensors.empty()) continue;
    for (const std::span<std::byte>& tensor : out.tensors) given += tensor.size();
    WSYNC_TRY(Swap(rank, group, ranks, std::move(out), std::move(in)).run());
  }
  return given;
}

// Executes the decision on this rank.
Result<Recovered> execute(TrainingRank& rank, collective::ProcessGroup& group, Resume resume,
                          const std::optional<StepResult>& before, std::uint64_t bucket_bytes) {
  const std::uint32_t own = group.rank();
  if (std::ranges::find(resume.commits, own) != resume.commits.end()) {
    if (!before)
      return fail(ErrorCode::kInternal,
                  fmt::format("rank {} has to end step {}, but no rank has the result of that step",
                              own, resume.step - 1));
    WSYNC_TRY(rank.update().finish(resume.step - 1, *before));
  }
  const auto given = WSYNC_TRY(give(rank, group, resume.transfers, bucket_bytes));
  WSYNC_TRY(rank.update().share_tied_head());
  rank.begin_at(resume.step, before);
  return Recovered{.step = resume.step,
                   .before = before,
                   .replaced = std::move(resume.replaced),
                   .bytes = given};
}

}  // namespace

Result<Recovered> recover(TrainingRank& rank, collective::ProcessGroup& group,
                          std::uint64_t bucket_bytes) {
  if (!rank.options().second_holders)
    return fail(ErrorCode::kInvalidInput,
                "without second holders of each shard there is nothing to recover a rank from; "
                "set second_holders, or begin from a checkpoint");
  const auto break_group = [&](const Error& why) {
    group.abort(why);
    return fail(why);
  };
  if (const auto same = rank.compare_options(); !same) return break_group(same.error());
  const auto signs = gather_signs(rank, group);
  if (!signs) return break_group(signs.error());
  const auto states = states_of(*signs);
  if (!states) return break_group(states.error());
  auto resume = decide(rank.options().sizes, *states);
  if (!resume) {  // decide() gives the same error on all ranks
    rank.set_empty();
    return fail(std::move(resume).error());
  }
  const std::optional<StepResult> before = result_of(*signs, resume->step - 1);
  auto recovered = execute(rank, group, std::move(*resume), before, bucket_bytes);
  if (!recovered) return break_group(recovered.error());
  return recovered;
}

}  // namespace wsync::training
