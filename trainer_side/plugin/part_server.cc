#include "trainer_side/plugin/part_server.h"

#include <algorithm>
#include <span>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/base/log.h"
#include "shared/base/weight_limits.h"
#include "shared/transport/make_transport.h"
#include "shared/weights/leaf_check.h"
#include "trainer_side/plugin/rank_gather.h"

namespace wsync::plugin {

Result<std::unique_ptr<PartServer>> PartServer::create(Loop& loop,
                                                       const config::TrainerConfig& config,
                                                       std::uint32_t rank, unsigned threads) {
  auto server = std::unique_ptr<PartServer>(new PartServer(loop));
  const config::NetworkConfig& network = config.network;
  const bool is_trusted = network.data_security == DataSecurity::kTrustedNetwork;
  if (!config.publisher_key.empty() && !is_trusted) server->secret_ = transport::make_pair_secret();
  const transport::TransportOptions options{.run_dir = config.run_dir,
                                            .name = fmt::format("rank{}", rank),
                                            .data_address = network.data_address,
                                            .advertise = network.advertise,
                                            .security = network.data_security,
                                            .secret = server->secret_};
  auto transports = WSYNC_TRY(transport::make_transports(
      network.transport,
      [&loop](std::function<void()> task, std::source_location made) {
        loop.post(std::move(task), made);
      },
      options));
  for (auto& transport : transports) {
    if (transport->traits().maps_source) continue;
    Server added{.transport = std::move(transport), .source = nullptr};
    added.source = WSYNC_TRY(added.transport->listen());
    server->servers_.push_back(std::move(added));
  }
  if (server->servers_.empty())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("transport: {} leads to no other host, so a rank with `leader` cannot "
                            "serve its part of a version: set `transport: auto`",
                            network.transport));
  server->threads_ = threads;
  return server;
}

PartServer::~PartServer() {
  *alive_ = false;
  stop_.request_stop();
  worker_.stop();
}

control::PartSummed PartServer::refusal(const control::PartWanted& wanted, std::string why) {
  return {.question = wanted.question,
          .step = wanted.step,
          .failure = std::move(why),
          .sums = {},
          .carried = {}};
}

control::RankServes PartServer::serves() const {
  control::RankServes serves{
      .host = host_name(), .boot_id = boot_id(), .transports = {}, .secret = {}};
  for (const Server& server : servers_)
    serves.transports.push_back({.kind = std::string(server.transport->traits().kind),
                                 .address = server.source->address()});
  if (secret_) serves.secret.assign(secret_->begin(), secret_->end());
  return serves;
}

Result<PartServer::Part> PartServer::lay_out(const control::PartWanted& wanted,
                                             std::shared_ptr<const publish::Snapshot> snapshot,
                                             const std::vector<publish::RankTensor>& tensors) {
  Part part;
  part.buckets.resize(wanted.bucket_count);
  const Manifest& manifest = *snapshot->manifest();
  std::vector<LeafPlace> leaves;
  std::vector<std::size_t> first(wanted.bucket_count + 1, 0);
  std::uint64_t next_bucket = 0;
  for (const control::PartWindow& window : wanted.windows) {
    const auto refuse = [&](std::string_view what) {
      return fail(ErrorCode::kInvalidInput, fmt::format("rank 0 asks for bucket {} of step {}: {}",
                                                        window.bucket, wanted.step, what));
    };
    if (window.bucket >= wanted.bucket_count || window.bucket < next_bucket)
      return refuse("the buckets are not in their order");
    if (window.tensor >= tensors.size()) return refuse("there is no such shard");
    const TensorInfo& info = tensors[window.tensor].info;
    const auto index = manifest.find(info.name);
    const std::uint64_t bytes = index ? manifest.byte_size(*index) : 0;
    if (window.bytes == 0 || window.offset > bytes || window.bytes > bytes - window.offset ||
        window.position % kSumWordBytes != 0)
      return refuse(fmt::format("bytes {} to {} of the shard of {}, which has {}", window.offset,
                                window.offset + window.bytes, describe(info), bytes));
    const std::uint64_t at =
        snapshot->plan()->arena_offset(snapshot->plan()->tensor_pieces(*index).front()) +
        window.offset;
    part.buckets[window.bucket] = {.offset = at, .bytes = window.bytes};
    part.own.push_back(window.bucket);
    for (; next_bucket <= window.bucket; ++next_bucket) first[next_bucket] = leaves.size();
    for (std::uint64_t done = 0; done < window.bytes;) {
      const std::uint64_t position = window.position + done;
      const std::uint64_t n =
          std::min(limits::kLeafBytes - position % limits::kLeafBytes, window.bytes - done);
      leaves.push_back({.arena_offset = at + done,
                        .bytes = n,
                        .place = {.seed = seed_of(info.name), .position = position},
                        .tensor = window.tensor});
      done += n;
    }
  }
  for (; next_bucket < first.size(); ++next_bucket) first[next_bucket] = leaves.size();
  part.leaves = std::make_shared<const LeafTable>(std::move(leaves), std::move(first));
  part.snapshot = std::move(snapshot);
  return part;
}

void PartServer::want(const control::PartWanted& wanted,
                      std::shared_ptr<const publish::Snapshot> snapshot,
                      const std::vector<publish::RankTensor>& tensors,
                      std::function<void(control::PartSummed)> answer) {
  auto laid_out = lay_out(wanted, snapshot, tensors);
  if (!laid_out) return answer(refusal(wanted, laid_out.error().message()));
  auto part = std::make_shared<Part>(std::move(*laid_out));
  if (const auto before = parts_.find(wanted.step); before != parts_.end())
    withdraw(*before->second);
  parts_[wanted.step] = part;

  struct Task {
    control::PartSummed summed;
    std::vector<std::pair<std::uint32_t, std::span<const std::byte>>> carried;
  };
  auto task = std::make_shared<Task>();
  task->summed = refusal(wanted, {});
  for (const std::uint32_t tensor : wanted.carried) {
    const auto index = tensor < tensors.size()
                           ? snapshot->manifest()->find(tensors[tensor].info.name)
                           : std::nullopt;
    if (!index)
      return answer(refusal(wanted, fmt::format("rank 0 asks for shard {}, and there are {}",
                                                tensor, tensors.size())));
    const auto pieces = snapshot->plan()->tensor_pieces(*index);
    task->carried.emplace_back(
        tensor, pieces.empty()
                    ? std::span<const std::byte>()
                    : snapshot->data().subspan(snapshot->plan()->arena_offset(pieces.front()),
                                               snapshot->manifest()->byte_size(*index)));
  }
  const auto submitted = worker_.submit(
      [task, part, threads = threads_, stop = stop_.get_token()] {
        auto sums = sum_leaves(*part->leaves, part->snapshot->data(), threads, stop);
        if (sums)
          task->summed.sums = std::move(*sums);
        else
          task->summed.failure = sums.error().message();
        for (const auto& [tensor, bytes] : task->carried)
          task->summed.carried.push_back({.tensor = tensor, .bytes = {bytes.begin(), bytes.end()}});
      },
      [alive = alive_, task, part, answer] {
        if (!*alive) return;
        part->sums = task->summed.sums;
        answer(std::move(task->summed));
      });
  if (!submitted) answer(refusal(wanted, submitted.error().message()));
}

void PartServer::keep(const control::PartsKept& kept) {
  std::erase_if(parts_, [&](const auto& entry) {
    const bool is_kept =
        std::ranges::find(kept.parts, entry.first, &control::KeptPart::step) != kept.parts.end();
    if (!is_kept) withdraw(*entry.second);
    return !is_kept;
  });
  for (const control::KeptPart& each : kept.parts) {
    const auto found = parts_.find(each.step);
    if (found == parts_.end() || each.version.none()) continue;
    if (found->second->served != each.version) offer(*found->second, each);
  }
}

void PartServer::offer(Part& part, const control::KeptPart& kept) {
  // It was asked for, and has answered: rank 0 names no version of it before.
  if (part.sums.size() != part.leaves->all().size()) return;
  withdraw(part);
  part.served = kept.version;
  transport::Offer offer;
  offer.key = {.fence = {.epoch = kept.fence.epoch, .run_id = kept.fence.run_id},
               .version = kept.version,
               .layout = kept.layout};
  offer.buckets = part.buckets;
  offer.data = part.snapshot->data();
  offer.leaves = part.leaves;
  offer.complete = false;
  offer.hold = part.snapshot;
  for (const Server& server : servers_) {
    server.source->offer(offer);
    for (const std::uint32_t bucket : part.own)
      server.source->bucket_summed(
          kept.version, bucket,
          std::span(part.sums).subspan(part.leaves->first(bucket),
                                       part.leaves->bucket(bucket).size()));
  }
  log_info("a part of version {} is served: {} of its {} buckets", kept.version.to_string(),
           part.own.size(), part.buckets.size());
}

void PartServer::withdraw(const Part& part) {
  if (part.served.none()) return;
  for (const Server& server : servers_)
    server.source->withdraw(part.served, "rank 0 needs this part no longer");
}

}  // namespace wsync::plugin
