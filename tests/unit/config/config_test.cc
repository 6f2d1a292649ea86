
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <stdlib.h>

#include "shared/base/units.h"
#include "shared/config/devices_config.h"
#include "shared/config/document.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/sources.h"
#include "shared/config/trainer_config.h"

namespace wsync::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string example(const std::string& name) {
  std::ifstream file(std::string(WSYNC_SOURCE_DIR) + "/deploy/config/" + name);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string sidecar_error(std::string_view text, const Sources& sources = {}) {
  const Result<SidecarConfig> config = parse_sidecar(text, "s.yaml", sources);
  if (config) return "accepted";
  EXPECT_EQ(config.error().code(), ErrorCode::kInvalidInput);
  return config.error().message();
}

std::vector<std::string> keys_of(const std::string& text) {
  std::vector<std::string> keys;
  const std::vector<Entry> entries = parse_document(text, "example").value();
  for (const Entry& entry : entries) keys.push_back(entry.key);
  return keys;
}

TEST(Config, TheNodeOfArenasIsAutoOffOrANumber) {
  const auto memory = [](const std::string& value) {
    return parse_trainer("memory:\n  numa_node: " + value + "\n", "t.yaml").value().memory;
  };
  EXPECT_TRUE(memory("auto").near_gpus);
  EXPECT_EQ(memory("auto").numa_node, std::nullopt);
  EXPECT_FALSE(memory("off").near_gpus);
  EXPECT_EQ(memory("off").numa_node, std::nullopt);
  EXPECT_FALSE(memory("3").near_gpus);
  EXPECT_EQ(memory("3").numa_node, 3U);
  for (const char* wrong : {"1024", "-1", "x", "1x"})
    EXPECT_EQ(sidecar_error(std::string("memory:\n  numa_node: ") + wrong + "\n"),
              std::string("s.yaml:2: memory.numa_node: expected auto, off or the number of a node "
                          "from 0 to 1023, found '") +
                  wrong + "'");
  EXPECT_NE(
      sidecar_error("memory:\n  huge_pages: on\n").find("expected one of off, advise, explicit"),
      std::string::npos);
}

TEST(Config, ExampleFilesHoldEveryKeyWithItsDefault) {
  EXPECT_EQ(keys_of(example("sidecar.yaml")), sidecar_keys());
  EXPECT_EQ(keys_of(example("trainer.yaml")), trainer_keys());
  EXPECT_EQ(parse_sidecar(example("sidecar.yaml"), "e").value(), parse_sidecar("", "").value());
  EXPECT_EQ(parse_trainer(example("trainer.yaml"), "e").value(), parse_trainer("", "").value());
}

TEST(Config, DecisionsAreInAFileOrInEtcd) {
  const auto members = [](const std::string& value, const std::string& more = {}) {
    return parse_trainer("decision_store: \"" + value + "\"\n" + more, "t.yaml")
        .value()
        .etcd.members;
  };
  const auto error = [](const std::string& value) {
    const auto config = parse_trainer("decision_store: \"" + value + "\"\n", "t.yaml");
    return config ? std::string() : config.error().message();
  };
  EXPECT_THAT(members("file"), IsEmpty());
  EXPECT_THAT(members("etcd:http://127.0.0.1:2379"), ElementsAre("http://127.0.0.1:2379"));
  EXPECT_THAT(members("etcd:http://localhost:1,http://[::1]:2"),
              ElementsAre("http://localhost:1", "http://[::1]:2"));
  EXPECT_THAT(
      members("etcd:https://etcd.example:2379", "etcd: {ca: /ca, certificate: /c, key: /k}\n"),
      ElementsAre("https://etcd.example:2379"));
  EXPECT_THAT(members("etcd:http://10.0.0.5:2379", "data_security: trusted_network\n"),
              ElementsAre("http://10.0.0.5:2379"));
  for (const char* value :
       {"", "etcd", "etcd:", "etcd:,", "etcd:http://127.0.0.1", "etcd:http://127.0.0.1:0",
        "etcd:127.0.0.1:2379", "etcd:http://127.0.0.1:2379/v3", "etcd:ftp://127.0.0.1:2379",
        "etcd:http://127.0.0.1:1,,http://127.0.0.1:2", "consul:x"})
    EXPECT_THAT(error(value), HasSubstr("t.yaml:1: decision_store: expected file, or etcd:URL"))
        << value;
  EXPECT_THAT(error("etcd:http://10.0.0.5:2379"), HasSubstr("is another host"));
  const auto with = [](const std::string& more) {
    return parse_trainer("decision_store: etcd:https://h:1\n" + more, "t.yaml").error().message();
  };
  EXPECT_THAT(with("etcd: {key: /k}\n"), HasSubstr("etcd.certificate and etcd.key together"));
  EXPECT_THAT(with("etcd: {certificate: /k}\n"),
              HasSubstr("etcd.certificate and etcd.key together"));
  EXPECT_THAT(with("etcd: {ca: k}\n"), HasSubstr("expected an absolute path"));
  EXPECT_THAT(parse_trainer("etcd: {ca: /k}\n", "t.yaml").error().message(),
              HasSubstr("names no https:// URL"));
  EXPECT_THAT(error("etcd:http://etcd.example:2379"), HasSubstr("trusted_network"));
}

TEST(Config, SomeSettingsDefeatPatches) {
  const auto obstacle = [](std::vector<std::string> set) {
    return patch_obstacle(load_sidecar({.file = {}, .environment = {}, .set = set}).value());
  };
  EXPECT_EQ(obstacle({}), PatchObstacle::kNone);
  EXPECT_EQ(obstacle({"patch.mode=auto", "patch.transfer=off"}), PatchObstacle::kNone);
  EXPECT_EQ(obstacle({"patch.transfer=off"}), PatchObstacle::kNothingNew);
  EXPECT_EQ(obstacle({"scrub.interval=0", "patch.transfer=off"}), PatchObstacle::kNoScrubs);
  EXPECT_EQ(obstacle({"scrub.interval=0", "patch.mode=off"}), PatchObstacle::kModeOff);
}

TEST(Config, ReadsEveryKindOfValue) {
  const SidecarConfig c = parse_sidecar(
                              "name: host7\nrun_dir: /run/w\n"
                              "devices: {kind: separate, count: 4, buffer_bytes: 2MiB}\n"
                              "stages: 3\nhost_memory: 12GiB\ntransport: tcp\n"
                              "heartbeat: {interval: 50ms, deadline: 1s}\nmax_staleness: 0\n"
                              "log:\n  level: debug\n  format: json\ntrace_spans: 0\n",
                              "s.yaml")
                              .value();
  EXPECT_EQ(c.name, "host7");
  EXPECT_EQ(c.coordinator, "ipc:///run/w/control");
  EXPECT_EQ(c.devices,
            (DevicesConfig{.kind = DeviceKind::kSeparate, .count = 4, .buffer_bytes = 2U << 20U}));
  EXPECT_EQ(c.stages, Stages::kThree);
  EXPECT_EQ(c.host_memory, 12 * limits::kGiB);
  EXPECT_EQ(c.network.transport, "tcp");
  EXPECT_EQ(c.heartbeat.interval, Milliseconds(50));
  EXPECT_EQ(c.max_staleness, Milliseconds(0));
  EXPECT_EQ(c.log.level, LogLevel::kDebug);
  EXPECT_EQ(c.log.format, LogFormat::kJson);
  EXPECT_EQ(c.trace_spans, 0U);

  const TrainerConfig t = parse_trainer(
                              "commit: quorum:3\ntake_over: true\narenas: 5\npause_mode: keep\n"
                              "forget_after: 0\n",
                              "t")
                              .value();
  EXPECT_EQ(t.commit, (CommitPolicy{.rule = CommitRule::kQuorum, .quorum = 3}));
  EXPECT_TRUE(t.take_over);
  EXPECT_EQ(t.arenas, 5U);
  EXPECT_EQ(t.pause_mode, PauseMode::kKeep);
  EXPECT_EQ(t.forget_after, Milliseconds(0)) << "never";
  EXPECT_EQ(TrainerConfig{}.forget_after, Milliseconds(600'000));
  EXPECT_EQ(parse_sidecar("forget_after: 90s\n", "s").value().forget_after, Milliseconds(90'000));
}

TEST(Config, PagesAreASocketBelowTheRunDirUnlessTheyAreElsewhereOrNowhere) {
  const auto sidecar = [](std::string_view text) {
    return parse_sidecar(text, "s.yaml").value().http.address;
  };
  EXPECT_EQ(sidecar("name: h\nrun_dir: /run/w\n"), "ipc:///run/w/h.http");
  EXPECT_EQ(sidecar("http: {address: none}"), "");
  EXPECT_EQ(sidecar("http: {address: tcp://127.0.0.1:9190}"), "tcp://127.0.0.1:9190");
  EXPECT_EQ(sidecar("http: {address: ipc:///run/pages}"), "ipc:///run/pages");
  const auto trainer = [](std::string_view text) {
    return parse_trainer(text, "t.yaml").value().http.address;
  };
  EXPECT_EQ(trainer("run_dir: /run/w\n"), "ipc:///run/w/control.http");
  EXPECT_EQ(trainer("run_dir: /run/w\nhttp: {address: auto}\n"), "ipc:///run/w/control.http");
  EXPECT_EQ(trainer("run_dir: /run/w\ncoordinator: ipc:///run/c\n"), "ipc:///run/w/trainer.http");
  EXPECT_EQ(
      sidecar_error("http: {address: tcp://0.0.0.0:9190}"),
      "s.yaml:1: http.address: 'tcp://0.0.0.0:9190' can be reached from other hosts, whose "
      "clients must show a token: make one with `wsync keys token FILE` and set http.token to "
      "that file, or use ipc:// or a loopback address (127.0.0.1, localhost, [::1])");
  const HttpConfig shown = parse_sidecar(
                               "http: {address: tcp://0.0.0.0:9190, token: /etc/t, open: "
                               "metrics}",
                               "s.yaml")
                               .value()
                               .http;
  EXPECT_EQ(shown,
            (HttpConfig{
                .address = "tcp://0.0.0.0:9190", .token = "/etc/t", .open = OpenPages::kMetrics}));
  EXPECT_EQ(shown.open_paths(), std::vector<std::string>{"/metrics"});
  EXPECT_TRUE(HttpConfig{}.open_paths().empty());
  EXPECT_TRUE(parse_trainer("http: {address: 'tcp://fleet.example:9191', token: /etc/t}", "t"));
  EXPECT_THAT(sidecar_error("http: {token: t}"), testing::HasSubstr("expected an absolute path"));
  EXPECT_THAT(sidecar_error("http: {address: 'tcp://0.0.0.0', token: /etc/t}"),
              testing::HasSubstr("http.address: expected tcp://"));
  EXPECT_EQ(sidecar_error("http: {open: metrics}"),
            "s.yaml:1: http.open: expected none, because without http.token every page is open; "
            "found metrics");
  EXPECT_EQ(sidecar_error("http: {address: yes}"),
            "s.yaml:1: http.address: expected ipc:///ABSOLUTE/PATH (at most 100 bytes) or "
            "tcp://HOST:PORT, found 'yes'");
}

TEST(Config, GpusAreNamedByIndexOrByTheirNumber) {
  const auto devices = [](std::string_view text, std::vector<std::string> set = {}) {
    return parse_sidecar(text, "s.yaml", {.file = "", .environment = {}, .set = std::move(set)})
        .value()
        .devices;
  };
  const DevicesConfig two = devices("devices: {kind: cuda, gpus: [0, 0], count: 7}");
  EXPECT_EQ(two, (DevicesConfig{
                     .kind = DeviceKind::kCuda, .count = 2, .gpus = {0, 0}, .gpus_named = true}));
  EXPECT_EQ(devices("devices: {kind: cuda, count: 3}").gpus, (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(devices("devices: {kind: cuda, gpus: auto}").gpus, std::vector<std::uint32_t>{0});
  for (const char* text : {"devices.gpus=3,1", "devices.gpus=[3, 1]", "devices.gpus=3 1"})
    EXPECT_EQ(devices("devices: {kind: cuda}", {text}).gpus, (std::vector<std::uint32_t>{3, 1}))
        << text;
  const DevicesConfig other = devices(
      "devices: {kind: cuda, gpus: [1, 0], collective: nccl, keep_buffers: false, "
      "buffer_bytes: 32MiB}");
  EXPECT_EQ(other.collective, Collective::kNccl);
  EXPECT_FALSE(other.keep_buffers);
  EXPECT_EQ(other.buffer_bytes, 32 * limits::kMiB);
  EXPECT_EQ(devices("devices: {kind: separate, buffer_bytes: auto}").buffer_bytes, 0U);
}

TEST(Config, GpusThatCannotBeAreRefused) {
  EXPECT_EQ(sidecar_error("devices: {gpus: [0]}\n"),
            "s.yaml:1: devices.gpus: host devices have no GPU: leave this key out, or set "
            "devices.kind: cuda");
  EXPECT_EQ(sidecar_error("devices: {kind: cuda, gpus: [0, one]}\n"),
            "s.yaml:1: devices.gpus: expected auto or indices of GPUs from 0 to 63, such as [0, "
            "1], found 'one'");
  EXPECT_EQ(sidecar_error("devices: {kind: cuda, gpus: 64}\n"),
            "s.yaml:1: devices.gpus: expected auto or indices of GPUs from 0 to 63, such as [0, "
            "1], found '64'");
  EXPECT_EQ(sidecar_error("devices: {kind: cuda, gpus: []}\n"),
            "s.yaml:1: devices.gpus: expected 1 to 64 indices, found 0");
  EXPECT_EQ(sidecar_error("devices: {collective: nccl}\n"),
            "s.yaml:1: devices.collective: nccl works only with GPUs: choose auto or local, or set "
            "devices.kind: cuda");
  EXPECT_EQ(sidecar_error("devices: {kind: cuda, collective: nccl}\n"),
            "s.yaml:1: devices.collective: nccl needs at least two devices: choose auto or local "
            "for one device");
}

TEST(Config, SetRulesOverEnvironmentRulesOverFile) {
  Sources sources;
  const auto count = [&] {
    return parse_sidecar("devices: {count: 2}", "s.yaml", sources).value().devices.count;
  };
  EXPECT_EQ(count(), 2U);
  sources.environment["WSYNC_DEVICES_COUNT"] = "3";
  EXPECT_EQ(count(), 3U);
  sources.set = {"devices.count=4"};
  EXPECT_EQ(count(), 4U);
  sources.set.emplace_back("devices.count=5");  // the last one counts
  EXPECT_EQ(count(), 5U);
}

TEST(Config, ProcessEnvironmentIsReadByPrefix) {
  ASSERT_EQ(setenv("WSYNC_LOG_LEVEL", "error", 1), 0);
  ASSERT_EQ(setenv("WSYNC_CUDA_LIBRARY", "/lib/libwsync_cuda.so", 1), 0);  // no key
  const auto environment = process_environment();
  ASSERT_EQ(unsetenv("WSYNC_LOG_LEVEL"), 0);
  ASSERT_EQ(unsetenv("WSYNC_CUDA_LIBRARY"), 0);
  EXPECT_FALSE(environment.contains("WSYNC_CUDA_LIBRARY"));
  EXPECT_EQ(environment.at("WSYNC_LOG_LEVEL"), "error");
  for (const auto& [name, value] : environment) EXPECT_TRUE(name.starts_with("WSYNC_")) << name;
}

TEST(Config, VariablesThatNameNoKeyAreTold) {
  EXPECT_EQ(unknown_variables({{"WSYNC_DEVICES_COUNT", "2"}, {"WSYNC_ARENAS", "3"}}),
            std::vector<std::string>{});
  EXPECT_EQ(unknown_variables({{"WSYNC_DEVICES_CUONT", "2"}}),
            std::vector<std::string>{
                "the environment sets WSYNC_DEVICES_CUONT, which is not a configuration key and "
                "has no effect; did you mean WSYNC_DEVICES_COUNT?"});
}

TEST(Config, TooFewArenasAreRefused) {
  const auto why = [](std::string_view text) {
    const auto config = parse_trainer(text, "t.yaml");
    return config ? std::string("taken") : config.error().message();
  };
  for (const char* transport : {"auto", "tcp"})
    EXPECT_EQ(why(std::string("arenas: 2\ntransport: ") + transport + "\n"),
              "t.yaml:1: arenas: expected a whole number from 3 to 16, found '2'");
  EXPECT_EQ(why("transport: auto\n"), "taken");
  for (const char* wrong : {"''", "ucx", "memfd,tcp"})
    EXPECT_NE(
        why("transport: " + std::string(wrong) + "\n").find("expected one of auto, memfd, tcp"),
        std::string::npos)
        << wrong;
  EXPECT_EQ(why("arenas: 3\n"), "taken");
}

TEST(Config, UnknownKeysAreRefusedWithTheNearest) {
  EXPECT_EQ(sidecar_error("name: a\ndevices:\n  cuont: 2\n"),
            "s.yaml:3: devices.cuont: unknown key; did you mean devices.count?");
  EXPECT_EQ(sidecar_error("zzzzzzzzzzzz: 1\n"), "s.yaml:1: zzzzzzzzzzzz: unknown key");
  EXPECT_EQ(sidecar_error("", {.file = "", .environment = {}, .set = {"log.levle=info"}}),
            "--set: log.levle: unknown key; did you mean log.level?");
  EXPECT_EQ(
      sidecar_error(
          "", {.file = "", .environment = {}, .set = {"log.levle=info"}, .set_name = "settings"}),
      "settings: log.levle: unknown key; did you mean log.level?");
}

TEST(Config, WrongValuesNameFileLineKeyExpectedAndFound) {
  EXPECT_EQ(sidecar_error("\ndevices: {count: many}\n"),
            "s.yaml:2: devices.count: expected a whole number from 1 to 64, found 'many'");
  EXPECT_EQ(sidecar_error("devices: {count: 65}\n"),
            "s.yaml:1: devices.count: expected a whole number from 1 to 64, found '65'");
  EXPECT_EQ(sidecar_error("devices: {buffer_bytes: 1KiB}\n"),
            "s.yaml:1: devices.buffer_bytes: expected 1MiB to 8GiB, found 1KiB");
  EXPECT_EQ(sidecar_error("devices: {buffer_bytes: 4194304}\n"),
            "s.yaml:1: devices.buffer_bytes: expected a size such as 64MiB (B, KiB, MiB, GiB, TiB, "
            "KB, MB, GB, TB), found '4194304'");
  EXPECT_EQ(sidecar_error("deadlines: {load: soon}\n"),
            "s.yaml:1: deadlines.load: expected a duration such as 500ms (ms, s, m, h), found "
            "'soon'");
  EXPECT_EQ(sidecar_error("stages: 4\n"),
            "s.yaml:1: stages: expected one of auto, 2, 3, found '4'");
  EXPECT_EQ(sidecar_error("heartbeat: {interval: 2s}\n"),
            "default: heartbeat.deadline: expected at least twice heartbeat.interval (2000 ms), "
            "found 3000 ms");
  EXPECT_EQ(sidecar_error("run_dir: here\n"),
            "s.yaml:1: run_dir: expected an absolute path, found 'here'");
  EXPECT_EQ(sidecar_error("", {.file = "", .environment = {{"WSYNC_STAGES", "x"}}, .set = {}}),
            "environment WSYNC_STAGES: stages: expected one of auto, 2, 3, found 'x'");
  EXPECT_EQ(sidecar_error("", {.file = "", .environment = {}, .set = {"stages"}}),
            "--set stages: expected key=value, such as log.level=debug");
  EXPECT_EQ(
      sidecar_error("", {.file = "", .environment = {}, .set = {"stages"}, .set_name = "settings"}),
      "settings stages: expected key=value, such as log.level=debug");
  EXPECT_EQ(parse_trainer("commit: quorum:0", "t").error().message(),
            "t:1: commit: expected all, each or quorum:N (N from 1 to 16384), found 'quorum:0'");
  EXPECT_EQ(parse_trainer("take_over: yes", "t").error().message(),
            "t:1: take_over: expected true or false, found 'yes'");
  EXPECT_EQ(parse_trainer("bucket_bytes: 1500KiB", "t").error().message(),
            "t:1: bucket_bytes: expected a multiple of 1048576 bytes, found 1536000");
}

TEST(Config, KeysAreAbsolutePathsOrNone) {
  EXPECT_EQ(parse_sidecar("", "s").value().key, "");
  EXPECT_EQ(parse_sidecar("key: /etc/wsync/host7.key\n", "s").value().key, "/etc/wsync/host7.key");
  EXPECT_EQ(parse_trainer("keys: /etc/wsync/keys\n", "t").value().keys, "/etc/wsync/keys");
  EXPECT_EQ(parse_trainer("", "t", {.file = "", .environment = {{"WSYNC_KEYS", "/k"}}, .set = {}})
                .value()
                .keys,
            "/k");
  EXPECT_EQ(sidecar_error("key: host7.key\n"),
            "s.yaml:1: key: expected an absolute path of at most 1024 bytes, found 'host7.key'");
  EXPECT_EQ(parse_trainer("keys: keys\n", "t").error().message(),
            "t:1: keys: expected an absolute path of at most 1024 bytes, found 'keys'");
}

TEST(Config, AddressesBeyondThisHostNeedKeys) {
  for (const std::string line :
       {"coordinator: tcp://10.0.0.1:5000\n", "coordinator: tcp://trainer0:5000\n",
        "coordinator: 'tcp://[fd00::1]:5000'\n", "data_address: tcp://10.0.0.7:5000\n"}) {
    EXPECT_NE(
        sidecar_error(line).find("without keys everybody who reaches it could take part: make "
                                 "keys with `wsync keys init`"),
        std::string::npos)
        << line;
    EXPECT_EQ(sidecar_error(line + "key: /k\n"), "accepted") << line;
  }
  const auto trainer_error = [](const std::string& text) {
    const auto parsed = parse_trainer(text, "t.yaml");
    return parsed ? std::string("accepted") : parsed.error().message();
  };
  EXPECT_NE(trainer_error("listen: tcp://0.0.0.0:5000\n").find("wsync keys init"),
            std::string::npos);
  EXPECT_EQ(trainer_error("listen: tcp://0.0.0.0:5000\nkeys: /k\n"), "accepted");
  EXPECT_NE(sidecar_error("coordinator: tcp://127.0.0.1:99999\n").find("expected tcp://"),
            std::string::npos);
  EXPECT_NE(sidecar_error("coordinator: ipc://relative\n").find("expected ipc:///"),
            std::string::npos);
  EXPECT_EQ(sidecar_error("coordinator: tcp://127.1.2.3:5000\n"), "accepted");
  EXPECT_EQ(sidecar_error("coordinator: 'tcp://[::1]:5000'\n"), "accepted");
  EXPECT_EQ(sidecar_error("coordinator: tcp://localhost:0\n"), "accepted");
  EXPECT_EQ(sidecar_error("coordinator: 'tcp://localhost:1, tcp://127.0.0.1:2'\n"), "accepted");
  EXPECT_NE(sidecar_error("coordinator: tcp://localhost:1,tcp://10.0.0.1:2\n").find("keys"),
            std::string::npos);
  EXPECT_NE(sidecar_error("coordinator: tcp://localhost:1,ipc:///run/c\n").find("found 'ipc:"),
            std::string::npos);
  EXPECT_NE(sidecar_error("coordinator: 'tcp://localhost:1,'\n").find("found ''"),
            std::string::npos);
}

TEST(Config, WhatIsServedToOtherHostsMustFitTogether) {
  const auto error = [](const std::string& text) { return sidecar_error("key: /k\n" + text); };
  const auto expect_refused = [&](const std::string& text, std::string_view why) {
    EXPECT_NE(error(text).find(why), std::string::npos) << text << ": " << error(text);
  };
  expect_refused("data_address: tcp://host7:5000\n", "a name goes into `advertise`");
  expect_refused("data_address: tcp://0.0.0.0:5000\n", "name the one by which others reach it");
  EXPECT_EQ(error("data_address: tcp://0.0.0.0:5000\nadvertise: host7\n"), "accepted");
  EXPECT_EQ(error("data_address: 'tcp://[::]:5000'\nadvertise: fd00::7\n"), "accepted");
  expect_refused("data_address: tcp://10.0.0.7:5000\nadvertise: host7:80\n", "or a name");
  expect_refused("data_address: tcp://10.0.0.7:5000\nadvertise: 0.0.0.0\n",
                 "by which other hosts reach this one");
  expect_refused("advertise: host7\n", "which other hosts do not reach");
  expect_refused("data_security: plain\n", "trusted_network");
  EXPECT_EQ(error("data_address: tcp://10.0.0.7:5000\ndata_security: trusted_network\n"),
            "accepted");
  expect_refused("data_address: tcp://10.0.0.7:5000\ntransport: tcp\n", "tcp does not encrypt");
  EXPECT_EQ(error("data_address: tcp://10.0.0.7:5000\ntransport: tcp\n"
                  "data_security: trusted_network\n"),
            "accepted");
  expect_refused("transport: tls\ndata_security: trusted_network\n", "tls is for");
  EXPECT_EQ(error("transport: tls\n"), "accepted");
  EXPECT_NE(sidecar_error("transport: tls\n").find("tls needs keys"), std::string::npos);
}

TEST(Config, MissingFileAndFolderAreErrors) {
  EXPECT_EQ(
      load_sidecar({.file = "/nonexistent/s.yaml", .environment = {}, .set = {}}).error().code(),
      ErrorCode::kNotFound);
  EXPECT_EQ(load_trainer({.file = "/", .environment = {}, .set = {}}).error().code(),
            ErrorCode::kInvalidInput);
  EXPECT_EQ(load_trainer({.file = "", .environment = {}, .set = {}}).value(),
            parse_trainer("", "").value());
}

}  // namespace
}  // namespace wsync::config
