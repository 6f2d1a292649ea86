// The suites control, transport and codecs on small sizes: every case is there and right, bad
// options are refused, and what a measurement must see it sees.
#include <algorithm>
#include <array>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/baseline/pings.h"
#include "bench/codecs/codecs_bench.h"
#include "bench/codecs/text_codecs.h"
#include "bench/control/control_bench.h"
#include "bench/control/message_codec.h"
#include "bench/control/product_pings.h"
#include "bench/control/rounds.h"
#include "bench/harness/catalogue.h"
#include "bench/harness/directory.h"
#include "bench/harness/repeat.h"
#include "bench/harness/rows.h"
#include "bench/transport/transfers.h"
#include "bench/transport/transport_bench.h"
#include "shared/base/limits.h"
#include "shared/base/units.h"
#include "shared/weights/safetensors.h"

namespace wsync::bench {
namespace {

using limits::kMiB;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const OnTurn kSilently = [](std::string_view, unsigned, unsigned) {};

// What every result of these suites must be: cases of the catalogue, all of its cases, a value for
// each round, and a share wherever the catalogue names a baseline but for the ones in `alone`.
void expect_whole(const SuiteResult& suite, std::size_t rounds,
                  const std::vector<std::string>& alone) {
  const auto all = catalogue();
  const auto text = std::ranges::find(all, suite.suite, &SuiteText::name);
  ASSERT_NE(text, all.end());
  std::vector<std::string> names;
  for (const CaseResult& one : suite.cases) {
    EXPECT_THAT(names, testing::Not(Contains(one.name)));
    names.push_back(one.name);
    EXPECT_EQ(one.samples.size(), rounds) << one.name;
    for (const double sample : one.samples) EXPECT_GT(sample, 0) << one.name;
    // The longest name that the case begins with.
    const CaseText* found = nullptr;
    for (const CaseText& candidate : text->cases)
      if ((one.name == candidate.name || one.name.starts_with(std::string(candidate.name) + ",")) &&
          (found == nullptr || candidate.name.size() > found->name.size()))
        found = &candidate;
    ASSERT_NE(found, nullptr) << one.name;
    const bool is_alone =
        found->baseline.empty() || std::ranges::find(alone, one.name) != alone.end();
    EXPECT_EQ(one.ratios.size(), is_alone ? 0U : rounds) << one.name;
    EXPECT_EQ(one.baseline.has_value(), !is_alone) << one.name;
  }
  for (const CaseText& wanted : text->cases)
    // Fleets are measured alone, with processes (bench_suites_test.py).
    EXPECT_TRUE(wanted.name.starts_with("fleet") ||
                std::ranges::any_of(names,
                                    [&](const std::string& name) {
                                      return name == wanted.name ||
                                             name.starts_with(std::string(wanted.name) + ",");
                                    }))
        << wanted.name;
}

class PartsTest : public testing::Test {
 protected:
  Interrupt interrupt_ = Interrupt::create().value();
  TemporaryDirectory directory_ = TemporaryDirectory::create(testing::TempDir()).value();
};

// ---- rows ----

TEST_F(PartsTest, RowsHaveTheirFiguresWithoutWarmUpsAndTheirShares) {
  unsigned calls = 0;
  const std::vector<Row> rows{
      {.figures = {{.name = "streaming copy", .variant = "", .bytes = 0, .against = "memcpy"}},
       .measure = [&]() -> Result<std::vector<double>> { return std::vector{4.0}; }},
      {.figures = {{.name = "memcpy", .variant = "", .bytes = 7, .against = {}},
                   {.name = "XXH3", .variant = "small", .bytes = 0, .against = "memcpy"}},
       .measure = [&]() -> Result<std::vector<double>> {
         ++calls;
         return std::vector{8.0, 100.0 * calls};
       }}};
  const auto suite = run_rows("codecs", rows, {.warm_ups = 1, .rounds = 2}, interrupt_, kSilently);
  ASSERT_TRUE(suite) << suite.error().message();
  ASSERT_EQ(suite->cases.size(), 3U);
  EXPECT_EQ(suite->cases[0].name, "streaming copy");
  EXPECT_THAT(suite->cases[0].ratios, ElementsAre(0.5, 0.5));
  EXPECT_EQ(suite->cases[1].bytes, 7U);
  EXPECT_FALSE(suite->cases[1].baseline);
  EXPECT_EQ(suite->cases[2].name, "XXH3, small");
  EXPECT_THAT(suite->cases[2].samples, ElementsAre(200, 300));
  EXPECT_THAT(suite->cases[2].ratios, ElementsAre(25, 37.5));
}

TEST_F(PartsTest, ARowThatFailsIsNamed) {
  const std::vector<Row> rows{
      rate_row({.name = "XXH3", .variant = "small", .bytes = 1, .against = {}},
               []() -> Result<std::chrono::nanoseconds> {
                 return fail(ErrorCode::kDigestMismatch, "wrong");
               })};
  const auto suite = run_rows("codecs", rows, {}, interrupt_, kSilently);
  ASSERT_FALSE(suite);
  EXPECT_EQ(suite.error().message(), "XXH3, small: wrong");
}

TEST(PartsRates, AreOfTheirBytes) {
  EXPECT_DOUBLE_EQ(gib_per_s(limits::kGiB, std::chrono::seconds(2)), 0.5);
  std::uint64_t times = 0;
  std::uint64_t calls = 0;
  EXPECT_GT(ns_per_call([&] { keep(++calls); }, times), 0);
  const std::uint64_t found = times;
  EXPECT_GT(found, 1U);
  const std::uint64_t before = calls;
  EXPECT_GT(ns_per_call([&] { keep(++calls); }, times), 0);
  EXPECT_EQ(calls - before, found);
}

// ---- control ----

TEST_F(PartsTest, ControlHasEveryCase) {
  const auto suite = run_control_bench(
      {.directory = directory_.path(), .messages = 3, .replicas = {2, 5}, .rounds = 1}, interrupt_,
      kSilently);
  ASSERT_TRUE(suite) << suite.error().message();
  expect_whole(*suite, 1, {"update round, of each replica, 2 replicas"});
  EXPECT_EQ(suite->parameters.at("messages"), 3U);
  std::vector<std::string> names;
  for (const CaseResult& one : suite->cases) names.push_back(one.name);
  for (const char* name :
       {"round trip, port, ipc", "round trip, port, TCP", "one way, engine link", "encode, Stage",
        "decode rate, StatusReply of 1000 replicas", "update round, 5 replicas"})
    EXPECT_THAT(names, Contains(name));
}

TEST_F(PartsTest, ControlRefusesBadNumbers) {
  const auto refused = [&](ControlBenchOptions options) {
    options.directory = directory_.path();
    const auto suite = run_control_bench(options, interrupt_, kSilently);
    EXPECT_FALSE(suite);
    if (suite) return std::string();
    EXPECT_EQ(suite.error().code(), ErrorCode::kInvalidInput);
    return suite.error().message();
  };
  EXPECT_EQ(refused({.directory = {}, .messages = 0}), "--messages is 0, expected 1 to 1000000");
  EXPECT_EQ(refused({.directory = {}, .replicas = {}}),
            "--replicas is empty; expected at least one number");
  EXPECT_EQ(refused({.directory = {}, .replicas = {1, 0}}),
            "--replicas contains 0, expected numbers from 1 to 2048");
  EXPECT_EQ(refused({.directory = {}, .replicas = {2049}}),
            "--replicas contains 2049, expected numbers from 1 to 2048");
  EXPECT_EQ(refused({.directory = {}, .replicas = {3, 3}}), "--replicas contains 3 more than once");
}

TEST_F(PartsTest, EveryLinkPassesMoreMessagesThanItsQueueHolds) {
  const PingBytes bytes{.question = Bytes(100, std::byte{1}), .answer = Bytes(90, std::byte{2})};
  const std::string folder = directory_.path();
  std::vector<Result<std::unique_ptr<Pings>>> links;
  links.push_back(ping_bare_unix(bytes));
  links.push_back(ping_bare_zmq("ipc://" + folder + "/bare", bytes));
  links.push_back(ping_port("ipc://" + folder + "/port"));
  links.push_back(ping_port("tcp://127.0.0.1:0"));
  links.push_back(ping_engine_link(folder + "/engine"));
  for (auto& link : links) {
    ASSERT_TRUE(link) << link.error().message();
    for (const unsigned count : {1U, 2U, static_cast<unsigned>(10 * limits::kPortQueueCount)}) {
      const auto one_way = (*link)->one_way(count);
      ASSERT_TRUE(one_way) << one_way.error().message();
      EXPECT_GT(one_way->count(), 0);
    }
    const auto trips = (*link)->round_trips(5);
    ASSERT_TRUE(trips) << trips.error().message();
    EXPECT_GT(trips->count(), 0);
  }
  EXPECT_EQ(ping_port("tcp://192.0.2.1:1").error().code(), ErrorCode::kRefused);
  EXPECT_FALSE(ping_engine_link("/proc/missing/engine"));
  EXPECT_FALSE(ping_bare_zmq("ipc:///proc/missing/bare", bytes));
}

TEST(PartsMessages, OfALinkAreNumberedSoThatOneThatIsLostIsMissed) {
  const auto bytes = [](const control::Decoded& message) {
    return control::encode(message.envelope, message.message).value();
  };
  EXPECT_NE(bytes(port_question(7)), bytes(port_question(8)));
  EXPECT_NE(bytes(port_answer(7)), bytes(port_answer(8)));
  EXPECT_NE(bytes(engine_question(7)), bytes(engine_question(8)));
  EXPECT_NE(bytes(engine_answer(7)), bytes(engine_answer(8)));
}

TEST(PartsRounds, CommitOnEveryReplicaAgainAndAgain) {
  for (const unsigned sidecars : {1U, 7U}) {
    auto driver = RoundDriver::create(sidecars);
    ASSERT_TRUE(driver) << driver.error().message();
    for (int round = 0; round < 3; ++round) {
      const auto taken = driver->run_round();
      ASSERT_TRUE(taken) << taken.error().message();
      EXPECT_GT(taken->count(), 0);
    }
  }
}

TEST(PartsMessages, AreOnesThatComeBackTheSame) {
  const auto messages = typical_messages();
  ASSERT_TRUE(messages);
  std::vector<Row> rows;
  ASSERT_TRUE(add_message_rows(*messages, rows));
  EXPECT_EQ(rows.size(), 3 * messages->size());
  // One that is over a limit is no measurement.
  std::vector<TypicalMessage> broken{messages->front()};
  broken.front().decoded.envelope.replica = std::string(limits::kReplicaNameBytes + 1, 'r');
  const auto refused = add_message_rows(broken, rows);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("Stage"));
}

// ---- transport ----

TEST_F(PartsTest, TransportHasEveryCase) {
  const auto suite = run_transport_bench({.directory = directory_.path(),
                                          .bytes = kMiB + 5,
                                          .bucket_bytes = {256 * limits::kKiB, kMiB},
                                          .connections = {1, 3},
                                          .rounds = 2},
                                         interrupt_, kSilently);
  ASSERT_TRUE(suite) << suite.error().message();
  expect_whole(*suite, 2, {});
  EXPECT_EQ(suite->parameters.at("bytes"), kMiB + 4096);
  std::vector<std::string> names;
  for (const CaseResult& one : suite->cases) {
    names.push_back(one.name);
    EXPECT_EQ(one.bytes, kMiB + 4096) << one.name;
  }
  for (const char* name :
       {"TCP streams, buckets of 256 KiB, 1 connection",
        "TCP streams, buckets of 1 MiB, 3 connections",
        "CPU of TCP streams, buckets of 1 MiB, 1 connection",
        "TLS streams, buckets of 256 KiB, 1 connection",
        "CPU of TLS streams, buckets of 1 MiB, 3 connections",
        "TCP relay, buckets of 256 KiB, 3 connections", "memfd, handed over and copied"})
    EXPECT_THAT(names, Contains(name));
}

TEST_F(PartsTest, TransportRefusesBadNumbers) {
  const auto refused = [&](TransportBenchOptions options) {
    options.directory = directory_.path();
    const auto suite = run_transport_bench(options, interrupt_, kSilently);
    EXPECT_FALSE(suite);
    if (suite) return std::string();
    EXPECT_EQ(suite.error().code(), ErrorCode::kInvalidInput);
    return suite.error().message();
  };
  EXPECT_THAT(refused({.directory = {}, .bytes = kMiB - 1}), HasSubstr("--size is 1048575 bytes"));
  EXPECT_THAT(refused({.directory = {}, .bytes = kTransportBytesMax + 1}), HasSubstr("--size"));
  EXPECT_THAT(refused({.directory = {}, .bucket_bytes = {}}),
              HasSubstr("--bucket is empty; expected at least one number"));
  EXPECT_THAT(refused({.directory = {}, .bucket_bytes = {kMiB, kMiB}}),
              HasSubstr("--bucket contains 1048576 more than once"));
  EXPECT_THAT(refused({.directory = {}, .bucket_bytes = {4096}}), HasSubstr("expected 64KiB"));
  EXPECT_THAT(refused({.directory = {}, .bytes = kMiB, .bucket_bytes = {2 * kMiB}}),
              HasSubstr("at most --size (1048576 bytes)"));
  EXPECT_THAT(refused({.directory = {}, .bytes = kTransportBytesMax, .bucket_bytes = {1 << 16}}),
              HasSubstr("choose larger buckets"));
  EXPECT_THAT(refused({.directory = {}, .connections = {}}), HasSubstr("--connections is empty"));
  EXPECT_THAT(refused({.directory = {}, .connections = {0}}),
              HasSubstr("expected numbers from 1 to 64"));
  EXPECT_THAT(refused({.directory = {}, .connections = {65}}),
              HasSubstr("expected numbers from 1 to 64"));
}

TEST_F(PartsTest, TransfersBringNewBytesEachTime) {
  const auto bench = Ground::create(kMiB + 4096, 1).value();
  const auto loop = TransferLoop::create().value();
  const auto memfd = MemfdTransfers::create(*bench, *loop, directory_.path() + "/host").value();
  const auto tcp = TcpTransfers::create(*bench, *loop).value();
  const auto tls = TcpTransfers::create(*bench, *loop, true).value();
  const TcpTransfers::Shape shape{.bucket_bytes = 300'000, .connections = 2};
  for (int round = 0; round < 2; ++round) {
    const auto handed = memfd->pass(shape.bucket_bytes);
    ASSERT_TRUE(handed) << handed.error().message();
    EXPECT_LE(handed->hand_over, handed->all.wall);
    for (const auto& spent :
         {tcp->pass(shape), tcp->relay(shape), tls->pass(shape), tls->relay(shape)}) {
      ASSERT_TRUE(spent) << spent.error().message();
      EXPECT_GT(spent->wall.count(), 0);
      EXPECT_GT(spent->cpu.count(), 0);
    }
  }
  EXPECT_THAT(buckets_of(10, 4), ElementsAre(transport::BucketWindow{.offset = 0, .bytes = 4},
                                             transport::BucketWindow{.offset = 4, .bytes = 4},
                                             transport::BucketWindow{.offset = 8, .bytes = 2}));
}

TEST_F(PartsTest, ATransferThatFailsSaysWhy) {
  const auto loop = TransferLoop::create().value();
  const auto callbacks = loop->callbacks();
  loop->loop().post(
      [&] { callbacks.on_failure({.error = Error(ErrorCode::kPeerLost, "the source is gone")}); });
  const auto arrived = loop->wait();
  ASSERT_FALSE(arrived);
  EXPECT_EQ(arrived.error().message(), "the source is gone");
}

// ---- codecs ----

TEST_F(PartsTest, CodecsHaveEveryCase) {
  const auto suite = run_codecs_bench({.bytes = 5 * kMiB + 1, .rounds = 1}, interrupt_, kSilently);
  ASSERT_TRUE(suite) << suite.error().message();
  expect_whole(*suite, 1, {});
  EXPECT_EQ(suite->parameters.at("bytes"), 5 * kMiB + 4096);
  EXPECT_EQ(suite->parameters.at("model"), "Qwen3-30B-A3B");
  EXPECT_THAT(suite->notes, Contains(HasSubstr("compression")));
}

TEST_F(PartsTest, CodecsRefuseOtherSizesAndModels) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, kMiB - 1, kCodecBytesMax + 1}) {
    const auto suite = run_codecs_bench({.bytes = bytes}, interrupt_, kSilently);
    ASSERT_FALSE(suite);
    EXPECT_EQ(suite.error().code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(suite.error().message(), HasSubstr("--size"));
  }
  const auto suite =
      run_codecs_bench({.bytes = kMiB, .model = "Qwen3-30B-A3"}, interrupt_, kSilently);
  ASSERT_FALSE(suite);
  EXPECT_EQ(suite.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(suite.error().message(), HasSubstr("Qwen3-30B-A3B"));
}

TEST(PartsTexts, AreHeadersThatTheParserTakes) {
  const std::array tensors{
      TensorInfo{.name = "a\"quoted\"", .dtype = DType::kBF16, .shape = {2, 3}},
      TensorInfo{.name = "b", .dtype = DType::kF32, .shape = {}}};
  const auto text = safetensors_header_text(tensors);
  ASSERT_TRUE(text);
  const auto header =
      parse_safetensors_header(std::as_bytes(std::span(text->json)), text->file_bytes);
  ASSERT_TRUE(header) << header.error().message();
  ASSERT_EQ(header->tensors.size(), 2U);
  EXPECT_EQ(header->tensors[0].info, tensors[0]);
  EXPECT_EQ(header->tensors[1].info, tensors[1]);
  EXPECT_EQ(header->tensors[1].begin, 12U);
}

}  // namespace
}  // namespace wsync::bench
