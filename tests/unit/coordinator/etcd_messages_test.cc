#include "trainer_side/coordinator/etcd/etcd_messages.h"

#include <gmock/gmock.h>
#include <string>

namespace wsync::coordinator::etcd {
namespace {

using ::testing::HasSubstr;

Bytes bytes_of(std::string_view text) {
  Bytes bytes(text.size());
  std::ranges::transform(text, bytes.begin(), [](char c) { return static_cast<std::byte>(c); });
  return bytes;
}

// The answers below are those of etcd 3.4.23.

TEST(EtcdMessages, AKeyIsRead) {
  EXPECT_EQ(range_request("/wsync/f/record"), R"({"key":"L3dzeW5jL2YvcmVjb3Jk"})");
  const auto found = parse_range(
      R"({"header":{"cluster_id":"324952591200643719","member_id":"3319814642761637952","revision":"2","raft_term":"2"},"kvs":[{"key":"L3dzeW5jL2YvcmVjb3Jk","create_revision":"2","mod_revision":"2","version":"1","value":"aGVsbG8="}],"count":"1"})");
  ASSERT_TRUE(found.has_value()) << found.error().message();
  EXPECT_EQ(found->revision, 2U);
  EXPECT_EQ(found->value, bytes_of("hello"));
  const auto none = parse_range(
      R"({"header":{"cluster_id":"324952591200643719","member_id":"3319814642761637952","revision":"1","raft_term":"2"}})");
  ASSERT_TRUE(none.has_value());
  EXPECT_EQ(none->revision, 0U);
}

TEST(EtcdMessages, ATransactionComparesTheRevisionThatWasRead) {
  EXPECT_EQ(
      put_request("k", 7, bytes_of("v")),
      R"({"compare":[{"key":"aw==","mod_revision":"7","result":"EQUAL","target":"MOD"}],"failure":[{"request_range":{"key":"aw=="}}],"success":[{"request_put":{"key":"aw==","value":"dg=="}}]})");
  EXPECT_THAT(put_request("k", 0, bytes_of("v"), 2324035694847702792),
              HasSubstr(R"("lease":"2324035694847702792")"));
  const auto stored = parse_put(
      R"({"header":{"cluster_id":"1","member_id":"2","revision":"2","raft_term":"2"},"succeeded":true,"responses":[{"response_put":{"header":{"revision":"2"}}}]})");
  ASSERT_TRUE(stored.has_value()) << stored.error().message();
  EXPECT_TRUE(stored->is_stored);
  EXPECT_EQ(stored->revision, 2U);
  const auto refused = parse_put(
      R"({"header":{"cluster_id":"1","member_id":"2","revision":"9","raft_term":"2"},"responses":[{"response_range":{"header":{"revision":"9"},"kvs":[{"key":"aw==","create_revision":"2","mod_revision":"5","version":"1","value":"aGVsbG8="}],"count":"1"}}]})");
  ASSERT_TRUE(refused.has_value()) << refused.error().message();
  EXPECT_FALSE(refused->is_stored);
  EXPECT_EQ(refused->found.revision, 5U);
  EXPECT_EQ(refused->found.value, bytes_of("hello"));
  const auto gone = parse_put(
      R"({"header":{"revision":"9"},"responses":[{"response_range":{"header":{"revision":"9"}}}]})");
  ASSERT_TRUE(gone.has_value());
  EXPECT_EQ(gone->found.revision, 0U);
}

TEST(EtcdMessages, LeasesLiveAndEnd) {
  EXPECT_EQ(grant_request(std::chrono::seconds(5)), R"({"TTL":"5"})");
  EXPECT_EQ(
      parse_grant(R"({"header":{"revision":"2"},"ID":"2324035694847702792","TTL":"5"})").value(),
      2324035694847702792);
  EXPECT_EQ(lease_request(12), R"({"ID":"12"})");
  EXPECT_TRUE(
      parse_keep_alive(R"({"result":{"header":{"revision":"2"},"ID":"123","TTL":"5"}})").value());
  EXPECT_FALSE(parse_keep_alive(R"({"result":{"header":{"revision":"2"},"ID":"123"}})").value());
}

TEST(EtcdMessages, WhatIsNotFromEtcdIsRefusedWithASentence) {
  for (const char* body : {"", "null", "[]", "{", "Not Found", R"({"kvs":[]})",
                           R"({"header":{},"kvs":{}})", R"({"header":{},"kvs":[{}]})",
                           R"({"header":{},"kvs":[{"mod_revision":"x","value":"aGVsbG8="}]})",
                           R"({"header":{},"kvs":[{"mod_revision":"-1"}]})",
                           R"({"header":{},"kvs":[{"mod_revision":"1","value":"*"}]})",
                           R"({"header":{},"kvs":[{"mod_revision":"1","value":7}]})",
                           R"({"header":{},"kvs":[{"mod_revision":"1"},{"mod_revision":"2"}]})"}) {
    const auto found = parse_range(body);
    ASSERT_FALSE(found.has_value()) << body;
    EXPECT_EQ(found.error().code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(found.error().message(), HasSubstr("is this the address of etcd"));
  }
  for (const char* body :
       {"{}", R"({"header":{"revision":"3"},"succeeded":true})",
        R"({"header":{"revision":"3"},"succeeded":true,"responses":[{"response_range":{}}]})",
        R"({"header":{"revision":"3"},"succeeded":"yes","responses":[{"response_put":{}}]})",
        R"({"header":{"revision":"3"},"responses":[{"response_put":{}}]})",
        R"({"succeeded":true,"responses":[{"response_put":{}}]})"})
    EXPECT_FALSE(parse_put(body).has_value()) << body;
  EXPECT_FALSE(parse_grant(R"({"ID":"0"})").has_value());
  EXPECT_FALSE(parse_keep_alive("{}").has_value());
}

TEST(EtcdMessages, OnlyARefusalSaysThatNothingWasDone) {
  const Refusal full = parse_refusal(
      503, R"({"error":"etcdserver: mvcc: database space exceeded","message":"x","code":8})");
  EXPECT_TRUE(full.may_be_done) << "etcd finds out after it has applied the transaction";
  EXPECT_TRUE(full.is_settled);
  EXPECT_FALSE(full.is_final);
  EXPECT_THAT(full.text, HasSubstr("database space exceeded"));
  EXPECT_FALSE(
      parse_refusal(400, R"({"error":"etcdserver: key is not provided","code":3})").may_be_done);
  for (const int status : {403, 404, 408, 429, 499}) {
    const Refusal other = parse_refusal(status, "Not Found");
    EXPECT_TRUE(other.may_be_done && other.is_final) << "a proxy or another server";
    EXPECT_FALSE(other.is_settled);
  }
  // etcd 3.6 leaves `error` out.
  const Refusal newer = parse_refusal(400, R"({"code":9,"message":"etcdserver: no such lease"})");
  EXPECT_TRUE(newer.is_final && !newer.may_be_done);
  EXPECT_TRUE(parse_refusal(400, R"({"message":"without a code"})").may_be_done);
  for (const char* text :
       {"etcdserver: request timed out", "etcdserver: no leader", "etcdserver: leader changed"})
    EXPECT_TRUE(
        parse_refusal(503, std::string(R"({"error":")") + text + R"(","code":14})").may_be_done)
        << text;
  EXPECT_TRUE(parse_refusal(502, "Bad Gateway").may_be_done) << "a proxy, whose server may have it";
}

}  // namespace
}  // namespace wsync::coordinator::etcd
