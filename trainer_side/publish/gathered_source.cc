#include "trainer_side/publish/gathered_source.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/stream_copy.h"

namespace wsync::publish {
namespace {

tl::unexpected<Error> refuse(const TensorInfo& info, std::uint32_t rank, std::string_view what) {
  return fail(ErrorCode::kInvalidInput,
              fmt::format("tensor {}, rank {}: {}", describe(info), rank, what));
}

// A tensor seen as rows of the dimensions from `dim` on. The unit is one index of `dim`.
struct RowView {
  std::uint64_t rows = 1;
  std::uint64_t row_bytes = 0;
  std::uint64_t unit_bytes = 0;
};

// `total_bytes`: size of the whole tensor, whose shape contains no zero.
Result<RowView> view_along(const TensorInfo& info, std::uint32_t dim, std::uint64_t total_bytes,
                           std::uint32_t rank) {
  if (dim >= info.shape.size())
    return refuse(info, rank, fmt::format("it has no dimension {} to cut", dim));
  RowView view;
  for (std::uint32_t i = 0; i < dim; ++i) view.rows *= info.shape[i];
  const std::uint64_t units = view.rows * info.shape[dim];
  if (total_bytes % units != 0)
    return refuse(info, rank, fmt::format("a cut along dimension {} is not on whole bytes", dim));
  view.unit_bytes = total_bytes / units;
  view.row_bytes = total_bytes / view.rows;
  return view;
}

}  // namespace

Result<GatheredSource> GatheredSource::create(std::vector<std::vector<RankTensor>> ranks) {
  std::map<std::string, std::vector<std::pair<std::uint32_t, RankTensor*>>> by_name;
  std::vector<TensorInfo> infos;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank)
    for (RankTensor& tensor : ranks[rank]) {
      auto& parts = by_name[tensor.info.name];
      if (parts.empty()) infos.push_back(tensor.info);
      if (!parts.empty() && parts.front().second->info != tensor.info)
        return refuse(tensor.info, rank,
                      "rank " + std::to_string(parts.front().first) + " describes it as " +
                          describe(parts.front().second->info));
      if (!parts.empty() && parts.back().first == rank)
        return refuse(tensor.info, rank, "it is given twice");
      parts.emplace_back(rank, &tensor);
    }
  auto manifest = WSYNC_TRY(Manifest::create(std::move(infos)));
  GatheredSource source;
  for (std::uint32_t i = 0; i < manifest.size(); ++i) {
    auto tensor = WSYNC_TRY(assemble(manifest.tensor(i), by_name[manifest.tensor(i).name]));
    source.tensors_.push_back(std::move(tensor));
  }
  source.manifest_ = std::make_shared<const Manifest>(std::move(manifest));
  return source;
}

Result<GatheredSource::Tensor> GatheredSource::assemble(
    const TensorInfo& info, const std::vector<std::pair<std::uint32_t, RankTensor*>>& parts) {
  const auto total = WSYNC_TRY(info.byte_size());
  Tensor tensor{.row_bytes = total};
  if (total == 0) return tensor;
  std::optional<std::uint32_t> dim;
  for (const auto& [rank, part] : parts) {
    Shard shard{.begin = 0, .bytes = total, .rank = rank};
    std::uint64_t rows = 1;
    if (part->range) {
      const ShardRange range = *part->range;
      if (dim.value_or(range.dim) != range.dim)
        return refuse(info, rank,
                      fmt::format("it is cut along dimension {}, but another rank cuts along {}",
                                  range.dim, *dim));
      dim = range.dim;
      const auto view = WSYNC_TRY(view_along(info, range.dim, total, rank));
      const std::uint64_t extent = info.shape[range.dim];
      if (range.length == 0 || range.begin > extent || range.length > extent - range.begin)
        return refuse(info, rank,
                      fmt::format("range [{}, +{}) is outside of dimension {}", range.begin,
                                  range.length, range.dim));
      tensor.row_bytes = view.row_bytes;
      rows = view.rows;
      shard.begin = range.begin * view.unit_bytes;
      shard.bytes = range.length * view.unit_bytes;
    }
    if (const auto has = size_of(part->bytes); has && *has != shard.bytes * rows)
      return refuse(info, rank,
                    fmt::format("it has {} bytes in memory, but its range needs {}", *has,
                                shard.bytes * rows));
    shard.source = std::move(part->bytes);
    tensor.shards.push_back(std::move(shard));
  }
  // A rank that holds the whole tensor is sufficient; its shard is a single row.
  const auto whole = std::ranges::find(tensor.shards, total, &Shard::bytes);
  if (whole != tensor.shards.end()) {
    Shard kept = std::move(*whole);
    tensor.shards.clear();
    tensor.shards.push_back(std::move(kept));
    tensor.row_bytes = total;
    return tensor;
  }
  std::ranges::stable_sort(tensor.shards, {}, &Shard::begin);
  WSYNC_TRY(check_cover(info, *dim, tensor));
  const auto replicas = std::ranges::unique(tensor.shards, [](const Shard& a, const Shard& b) {
    return a.begin == b.begin && a.bytes == b.bytes;
  });
  tensor.shards.erase(replicas.begin(), replicas.end());
  return tensor;
}

Result<> GatheredSource::check_cover(const TensorInfo& info, std::uint32_t dim,
                                     const Tensor& tensor) {
  const std::uint64_t unit = tensor.row_bytes / info.shape[dim];
  const auto text = [unit](std::uint64_t begin, std::uint64_t end) {
    return fmt::format("[{}, {})", begin / unit, end / unit);
  };
  std::uint64_t covered = 0;
  std::optional<std::pair<std::uint64_t, std::uint64_t>> gap;
  const Shard* before = nullptr;
  for (const Shard& shard : tensor.shards) {
    const bool is_copy =
        before != nullptr && before->begin == shard.begin && before->bytes == shard.bytes;
    if (is_copy) continue;
    if (shard.begin < covered)
      return refuse(
          info, shard.rank,
          fmt::format("its range {} of dimension {} overlaps {} of rank {}; ranks may give the "
                      "same range or ranges that do not overlap",
                      text(shard.begin, shard.begin + shard.bytes), dim,
                      text(before->begin, before->begin + before->bytes), before->rank));
    if (shard.begin > covered) {
      gap = {covered, shard.begin};
      break;
    }
    covered += shard.bytes;
    before = &shard;
  }
  if (!gap && covered == tensor.row_bytes) return {};
  if (!gap) gap = {covered, tensor.row_bytes};
  constexpr std::size_t kNamed = 4;
  std::string given;
  for (std::size_t i = 0; i < std::min(kNamed, tensor.shards.size()); ++i) {
    const Shard& shard = tensor.shards[i];
    given += fmt::format("{}rank {} {}", given.empty() ? "" : ", ", shard.rank,
                         text(shard.begin, shard.begin + shard.bytes));
  }
  if (tensor.shards.size() > kNamed)
    given += fmt::format(" and {} more", tensor.shards.size() - kNamed);
  return fail(ErrorCode::kInvalidInput,
              fmt::format("tensor {}: no rank gives {} of dimension {}: {}", describe(info),
                          text(gap->first, gap->second), dim, given));
}

std::vector<GatheredSource::RemoteShard> GatheredSource::remote_shards() const {
  std::vector<RemoteShard> found;
  for (std::uint32_t i = 0; i < tensors_.size(); ++i)
    for (const Shard& shard : tensors_[i].shards) {
      if (!std::holds_alternative<RemoteBytes>(shard.source)) continue;
      const std::uint64_t rows = manifest_->byte_size(i) / tensors_[i].row_bytes;
      found.push_back({.tensor = i,
                       .rank = shard.rank,
                       .begin = shard.begin,
                       .bytes = rows * shard.bytes,
                       .is_contiguous = rows == 1});
    }
  return found;
}

void GatheredSource::set_bytes(const RemoteShard& shard, TensorBytes bytes) {
  const auto found = std::ranges::find(tensors_[shard.tensor].shards, shard.begin, &Shard::begin);
  WSYNC_CHECK(found != tensors_[shard.tensor].shards.end(), "the shard is one of the model");
  found->source = std::move(bytes);
}

bool GatheredSource::is_on_host() const {
  return std::ranges::none_of(tensors_, [](const Tensor& tensor) {
    return std::ranges::any_of(tensor.shards, [](const Shard& shard) {
      return std::holds_alternative<DeviceBytes>(shard.source);
    });
  });
}

Result<> GatheredSource::start(const WritableArena& arena, const BucketPlan& plan) {
  // Pinning would take memory for what ranks on other hosts have of the arena.
  const bool is_whole = remote_shards().empty();
  auto copies =
      std::make_unique<DeviceCopies>(arena.hold(), is_whole ? &arena.arena()->region() : nullptr);
  for (std::uint32_t i = 0; i < tensors_.size(); ++i)
    for (const Shard& shard : tensors_[i].shards) {
      const auto* bytes = std::get_if<DeviceBytes>(&shard.source);
      if (bytes == nullptr || bytes->range.empty()) continue;
      const auto added =
          copies->add(*bytes, 0,
                      {.into = place_of(arena, plan, *manifest_, i).data() + shard.begin,
                       .row_bytes = shard.bytes,
                       .rows = bytes->range.size() / shard.bytes,
                       .stride = tensors_[i].row_bytes});
      if (!added)
        return fail(added.error().with_context(
            fmt::format("tensor {}, rank {}", manifest_->tensor(i).name, shard.rank)));
    }
  copies_ = std::move(copies);
  return copies_->start();
}

template <class Take>
Result<> GatheredSource::for_each_part(std::uint32_t index, std::uint64_t offset,
                                       std::span<std::byte> into, Take&& take) const {
  const Tensor& tensor = tensors_[index];
  while (!into.empty()) {
    const std::uint64_t row = offset / tensor.row_bytes;
    const std::uint64_t column = offset % tensor.row_bytes;
    const auto after = std::ranges::upper_bound(tensor.shards, column, {}, &Shard::begin);
    WSYNC_CHECK(after != tensor.shards.begin(), "the shards cover a row");
    const Shard& shard = *std::prev(after);
    const std::uint64_t in_shard = column - shard.begin;
    const std::size_t n = std::min<std::uint64_t>(into.size(), shard.bytes - in_shard);
    Result<> done = take(shard, row * shard.bytes + in_shard, into.first(n));
    if (!done)
      return fail(done.error().with_context(
          fmt::format("{}, rank {}", manifest_->tensor(index).name, shard.rank)));
    into = into.subspan(n);
    offset += n;
  }
  return {};
}

Result<> GatheredSource::read(std::uint32_t index, std::uint64_t offset,
                              std::span<std::byte> into) {
  return for_each_part(index, offset, into,
                       [this](const Shard& shard, std::uint64_t at, std::span<std::byte> part) {
                         return read_part(shard, at, part);
                       });
}

Result<WordSum> GatheredSource::read_sum(std::uint32_t index, const SumPlace& place,
                                         std::span<std::byte> into) {
  WordSum total;
  SumPlace next = place;
  bool cuts_words = false;
  // Where bytes of two ranks meet inside a word, the sums of the parts say nothing: the bytes from
  // `begin` on, which follow those of another host, are summed together.
  SumPlace begin = place;
  WordSum before;  // of what lies before `begin`
  const auto sum_together = [&](const SumPlace& end) {
    if (cuts_words)
      total = before +
              word_sum(into.subspan(begin.position - place.position, end.position - begin.position),
                       begin);
    cuts_words = false;
  };
  WSYNC_TRY(for_each_part(
      index, place.position, into,
      [&](const Shard& shard, std::uint64_t at, std::span<std::byte> part) -> Result<> {
        if (const auto* remote = std::get_if<RemoteBytes>(&shard.source)) {
          sum_together(next);
          const auto sum = remote->sums.find(next.position);
          WSYNC_CHECK(sum != remote->sums.end(), "what is on another host is summed there");
          if (!planted("sums_of_other_hosts_left_out")) total += sum->second;
          next.position += part.size();
          begin = next;
          before = total;
          return {};
        }
        const auto* from = std::get_if<std::span<const std::byte>>(&shard.source);
        cuts_words |= next.position % kSumWordBytes != 0;
        if (!cuts_words && std::holds_alternative<DeviceBytes>(shard.source)) {
          WSYNC_CHECK(copies_ != nullptr, "weights of a GPU are read between start() and finish()");
          total += WSYNC_TRY(copies_->wait_and_sum(part, next));
        } else if (from == nullptr || cuts_words) {
          WSYNC_TRY(read_part(shard, at, part));
          if (!cuts_words) total += word_sum(part, next);
        } else {
          total += copy_streaming_sum(part, from->subspan(at, part.size()), next);
        }
        next.position += part.size();
        return {};
      }));
  sum_together(next);
  return total;
}

Result<> GatheredSource::read_part(const Shard& shard, std::uint64_t offset,
                                   std::span<std::byte> into) const {
  if (const auto* callback = std::get_if<ReadTensor>(&shard.source))
    return (*callback)(offset, into);
  WSYNC_CHECK(!std::holds_alternative<RemoteBytes>(shard.source),
              "nobody reads bytes of another host here");
  if (std::holds_alternative<DeviceBytes>(shard.source)) {
    WSYNC_CHECK(copies_ != nullptr, "weights of a GPU are read between start() and finish()");
    return copies_->wait(into);
  }
  const auto from = std::get<std::span<const std::byte>>(shard.source);
  std::memcpy(into.data(), from.data() + offset, into.size());
  return {};
}

}  // namespace wsync::publish
