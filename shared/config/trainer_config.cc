#include "shared/config/trainer_config.h"

#include <algorithm>
#include <charconv>

#include "shared/base/digest.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/round_deadlines.h"
#include "shared/base/switch_deadlines.h"
#include "shared/base/tcp_address.h"
#include "shared/base/weight_limits.h"
#include "shared/config/address.h"
#include "shared/config/binder.h"
#include "shared/config/directories.h"
#include "shared/config/limits.h"
#include "shared/config/role.h"
#include "shared/config/units.h"
#include "shared/transport/limits.h"

namespace wsync::config {
namespace {

constexpr std::size_t kEtcdMembersMax = 16;

constexpr std::string_view kTlsScheme = "https://";

// The address in http://HOST:PORT or https://HOST:PORT; an error for anything else.
Result<TcpAddress> parse_etcd_url(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  const std::string_view scheme = url.starts_with(kTlsScheme) ? kTlsScheme : kScheme;
  if (!url.starts_with(scheme)) return fail(ErrorCode::kInvalidInput, "not an address");
  auto address = WSYNC_TRY(parse_tcp_address(fmt::format("tcp://{}", url.substr(scheme.size()))));
  if (address.port == 0) return fail(ErrorCode::kInvalidInput, "no port");
  return address;
}

void bind_fleet_id(Binder& binder, std::string& out) {
  const std::optional<Entry> entry = binder.take("fleet_id");
  if (!entry) return;
  if (entry->value == "auto") {
    out.clear();
  } else if (const auto id = Digest::parse(entry->value); !id || *id == Digest{}) {
    binder.refuse(*entry, fmt::format("expected auto or 32 hex digits that are not all zero, found "
                                      "'{}'; `wsync status --json` shows the id of a fleet",
                                      entry->value));
  } else {
    out = entry->value;
  }
}

void bind_commit(Binder& binder, CommitPolicy& out) {
  const std::optional<Entry> entry = binder.take("commit");
  if (!entry) return;
  const Result<CommitPolicy> policy = parse_commit_policy(entry->value);
  if (policy)
    out = *policy;
  else
    binder.refuse(*entry, policy.error().message());
}

// "file", or "etcd:URL,URL".
void bind_etcd_members(Binder& binder, EtcdConfig& out) {
  constexpr std::string_view kEtcd = "etcd:";
  const std::optional<Entry> entry = binder.take("decision_store");
  if (!entry || entry->value == "file") return;
  const auto refuse = [&](std::string_view why) {
    binder.refuse(*entry, fmt::format("expected file, or etcd:URL with the members of a cluster "
                                      "(etcd:https://10.0.0.5:2379,https://...), found '{}'{}",
                                      entry->value, why));
  };
  std::string_view rest = entry->value;
  if (!rest.starts_with(kEtcd)) return refuse("");
  rest.remove_prefix(kEtcd.size());
  while (!rest.empty()) {
    const std::string_view url = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(url.size() + 1, rest.size()));
    if (!parse_etcd_url(url))
      return refuse(fmt::format(": '{}' is neither http://HOST:PORT nor https://HOST:PORT", url));
    if (out.members.size() == kEtcdMembersMax)
      return refuse(fmt::format(": at most {} members", kEtcdMembersMax));
    out.members.emplace_back(url);
  }
  if (out.members.empty()) refuse("");
}

void bind_decisions(Binder& binder, EtcdConfig& out) {
  bind_etcd_members(binder, out);
  bind_key_path(binder, "etcd.ca", out.authorities);
  bind_key_path(binder, "etcd.certificate", out.certificate);
  bind_key_path(binder, "etcd.key", out.key);
  if (out.certificate.empty() != out.key.empty())
    binder.refuse(out.key.empty() ? "etcd.certificate" : "etcd.key",
                  "expected etcd.certificate and etcd.key together: one is of no use alone");
  const bool has_files = !out.authorities.empty() || !out.certificate.empty();
  const bool is_plain = std::ranges::none_of(
      out.members, [](const std::string& url) { return url.starts_with(kTlsScheme); });
  if (has_files && is_plain)
    binder.refuse(out.authorities.empty() ? "etcd.certificate" : "etcd.ca",
                  "expected '' where `decision_store` names no https:// URL");
}

// The record has no secret, but who changes it on its way chooses what the fleet serves.
void check_etcd(Binder& binder, const EtcdConfig& etcd, const NetworkConfig& network) {
  if (network.data_security == DataSecurity::kTrustedNetwork) return;
  for (const std::string& url : etcd.members)
    if (const auto address = parse_etcd_url(url);
        address && !address->is_loopback() && !url.starts_with(kTlsScheme))
      binder.refuse("decision_store",
                    fmt::format("{} is another host, and what is sent there is not encrypted: give "
                                "that member https://, or set data_security: trusted_network",
                                url));
}

void bind_weight_directory(Binder& binder, DirectoryConfig& out) {
  binder.text("directory.publish", out.publish);
  binder.count("directory.keep", out.keep, {1, kDirectoriesKeptMax});
  binder.size("directory.shard_bytes", out.shard_bytes, {limits::kMiB, limits::kModelBytesMax});
  binder.text("directory.model_files", out.model_files);
}

void bind_trainer(Binder& binder, TrainerConfig& c) {
  binder.text("checkpoint", c.checkpoint);
  binder.flag("watch", c.watch);
  bind_follow(binder, c.follow_directory, c.follow_interval);
  bind_publisher(binder, c);
  if (!c.follow_directory.empty() && !c.checkpoint.empty())
    binder.refuse("follow_directory",
                  fmt::format("expected '' with `checkpoint`, found '{}': a trainer publishes one "
                              "or the other",
                              c.follow_directory));
  if (!c.follow_directory.empty() && c.follow_directory == c.directory.publish)
    binder.refuse("follow_directory",
                  "expected another folder than directory.publish: what is "
                  "written there is published already");
  bind_log(binder, c.log);
  bind_trace(binder, c.trace_file, c.trace_spans);
}

}  // namespace

void bind_publisher(Binder& binder, TrainerConfig& c) {
  bind_weight_directory(binder, c.directory);
  bind_address(binder, "listen", c.listen, check_control_address);
  bind_key_path(binder, "keys", c.keys);
  bind_address(binder, "coordinator", c.coordinator, check_coordinator_addresses);
  bind_key_path(binder, "publisher_key", c.publisher_key);
  bind_address(binder, "leader", c.leader, check_control_address);
  bind_directory(binder, "run_dir", c.run_dir, default_run_dir(), kRunDirBytesMax);
  bind_directory(binder, "state_dir", c.state_dir, default_state_dir(), kConfigPathBytesMax);
  bind_decisions(binder, c.etcd);
  bind_fleet(binder, c.fleet);
  bind_fleet_id(binder, c.fleet_id);
  refuse_without_keys(binder, "listen", c.listen, !c.keys.empty());
  refuse_without_keys(binder, "coordinator", c.coordinator, !c.publisher_key.empty());
  refuse_without_keys(binder, "leader", c.leader, !c.publisher_key.empty());
  if (c.coordinator.empty() && c.leader.empty() && !c.publisher_key.empty())
    binder.refuse("publisher_key",
                  fmt::format("expected '' without `coordinator` or `leader`, found '{}': a "
                              "trainer has the keys of its own coordinator in `keys`",
                              c.publisher_key));
  if (!c.coordinator.empty() && !c.leader.empty())
    binder.refuse("leader",
                  fmt::format("expected '' with `coordinator`, found '{}': ranks on several hosts "
                              "publish with the coordinator in rank 0",
                              c.leader));
  if (c.listen.empty()) c.listen = "ipc://" + c.run_dir + "/control";
  bind_commit(binder, c.commit);
  binder.count("min_replicas", c.min_replicas, {0, limits::kReplicaCount});
  binder.count("min_sidecars", c.min_sidecars, {0, limits::kSidecarCount});
  binder.count("max_paused", c.max_paused, {0, limits::kReplicaCount});
  binder.text("canary", c.canary);
  if (c.canary.size() > limits::kReplicaNameBytes || c.canary.find('/') != std::string::npos)
    binder.refuse("canary", fmt::format("expected the name of a replica, at most {} bytes without "
                                        "'/', found '{}'",
                                        limits::kReplicaNameBytes, c.canary));
  binder.duration("canary_time", c.canary_time, {Milliseconds(0), Milliseconds(kDurationMsMax)});
  if (c.canary.empty() && c.canary_time.count() > 0)
    binder.refuse("canary_time", "expected 0 without `canary`: no replica switches first");
  binder.size("bucket_bytes", c.bucket_bytes, {limits::kBucketBytesMin, limits::kBucketBytesMax});
  if (c.bucket_bytes % limits::kLeafBytes != 0)
    binder.refuse("bucket_bytes", fmt::format("expected a multiple of {} bytes, found {}",
                                              limits::kLeafBytes, c.bucket_bytes));
  binder.count("arenas", c.arenas, {kArenasMin, kArenasMax});
  binder.choice("patch.in_place", c.in_place,
                {{"auto", PatchMode::kAuto}, {"off", PatchMode::kOff}});
  bind_memory(binder, c.memory);
  binder.count("snapshot_threads", c.snapshot_threads, {0, kSnapshotThreadsMax});
  binder.duration("idle_release", c.idle_release, kIdleRelease);
  binder.duration("forget_after", c.forget_after, kForgetAfter);
  bind_network(binder, c.network, !c.keys.empty() || !c.publisher_key.empty());
  check_etcd(binder, c.etcd, c.network);
  bind_pause_mode(binder, "pause_mode", c.pause_mode);
  binder.choice("caches", c.caches,
                {{"engine", CachePolicy::kEngine},
                 {"clear", CachePolicy::kClear},
                 {"keep", CachePolicy::kKeep}});
  bind_heartbeat(binder, c.heartbeat);
  binder.duration("deadlines.gather", c.deadlines.gather, kDeadline);
  binder.duration("deadlines.snapshot", c.deadlines.snapshot, kDeadline);
  binder.duration("deadlines.announce", c.deadlines.announce, kDeadline);
  binder.duration("deadlines.stage", c.deadlines.stage, kDeadline);
  binder.duration("deadlines.pause", c.deadlines.pause, kDeadline);
  binder.duration("deadlines.load", c.deadlines.load, kDeadline);
  binder.duration("deadlines.commit", c.deadlines.commit, kDeadline);
  binder.duration("deadlines.publish", c.deadlines.publish, kDeadline);
  binder.flag("take_over", c.take_over);
  bind_http(binder, c.http, c.run_dir, c.coordinator.empty() ? "control" : "trainer");
}

Result<TrainerConfig> load_trainer(const Sources& sources) {
  return load_role(bind_trainer, sources);
}
Result<TrainerConfig> parse_trainer(std::string_view text, std::string_view name,
                                    const Sources& sources) {
  return parse_role(bind_trainer, text, name, sources);
}
// A version that is written to a directory, or only served by a canary, needs an arena beside the
// others. Sources make a bucket for who has no base, and must not take long for it.
std::string arena_obstacle(const TrainerConfig& config) {
  if (config.in_place == PatchMode::kOff) return "patch.in_place: off";
  if (!config.directory.publish.empty()) return "directory.publish";
  if (!config.canary.empty()) return fmt::format("canary: {}", config.canary);
  if (config.bucket_bytes > limits::kStreamChangesBucketBytes)
    return fmt::format("bucket_bytes: {}, more than {}", format_size(config.bucket_bytes),
                       format_size(limits::kStreamChangesBucketBytes));
  return "";
}

std::vector<std::string> trainer_keys() { return keys_of_role(bind_trainer); }

Result<CommitPolicy> parse_commit_policy(std::string_view text) {
  constexpr std::string_view kQuorum = "quorum:";
  if (text == "all") return CommitPolicy{};
  if (text == "each") return CommitPolicy{.rule = CommitRule::kEach};
  if (text.starts_with(kQuorum)) {
    const std::string_view number = text.substr(kQuorum.size());
    std::uint32_t quorum = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), quorum);
    if (error == std::errc{} && end == number.data() + number.size() && quorum >= 1 &&
        quorum <= limits::kReplicaCount)
      return CommitPolicy{.rule = CommitRule::kQuorum, .quorum = quorum};
  }
  return fail(ErrorCode::kInvalidInput,
              fmt::format("expected all, each or quorum:N (N from 1 to {}), found '{}'",
                          limits::kReplicaCount, text));
}

}  // namespace wsync::config
