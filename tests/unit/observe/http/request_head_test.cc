#include "shared/observe/http/request_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wsync::http {
namespace {

using HeadState = RequestHead::State;
using testing::HasSubstr;

const std::string kLine = "POST /v1/completions HTTP/1.1\r\n";

TEST(RequestHead, IsPartialUntilItsBlankLine) {
  const std::string whole = kLine + "Host: x\r\nContent-Length: 12\r\n\r\n";
  for (std::size_t n = 0; n < whole.size(); ++n)
    EXPECT_EQ(examine_head(whole.substr(0, n)).state, HeadState::kPartial) << n;
  const RequestHead head = examine_head(whole + "{\"prompt\":1}GET");
  EXPECT_EQ(head.state, HeadState::kWhole);
  EXPECT_EQ(head.bytes, whole.size());
  EXPECT_EQ(head.request.method, "POST");
  EXPECT_EQ(head.request.path, "/v1/completions");
  EXPECT_EQ(head.request.header("host"), "x");
  EXPECT_FALSE(head.request.http_1_0);
  EXPECT_TRUE(head.keeps_open);
  EXPECT_EQ(head.body, BodyKind::kSized);
  EXPECT_EQ(head.body_bytes, 12U);
}

TEST(RequestHead, TellsHowTheBodyEnds) {
  EXPECT_EQ(examine_head("GET / HTTP/1.1\r\n\r\n").body, BodyKind::kNone);
  EXPECT_EQ(examine_head(kLine + "transfer-encoding:  Chunked \r\n\r\n").body, BodyKind::kChunked);
  EXPECT_EQ(examine_head(kLine + "CONTENT-LENGTH:0\r\n\r\n").body, BodyKind::kSized);
}

TEST(RequestHead, BlankLinesBeforeItAreSkipped) {
  const RequestHead head = examine_head("\r\n\r\nGET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(head.state, HeadState::kWhole);
  EXPECT_EQ(head.bytes, 22U);
  EXPECT_EQ(head.request.path, "/");
  EXPECT_EQ(examine_head("\r").state, HeadState::kPartial);
  std::string endless;
  while (endless.size() <= kMaxHeadBytes) endless += "\r\n";
  EXPECT_EQ(examine_head(endless).status, 431);
}

TEST(RequestHead, HasTheTargetDecoded) {
  const auto request = [](const std::string& target) {
    const RequestHead head = examine_head("GET " + target + " HTTP/1.1\r\n\r\n");
    EXPECT_EQ(head.state, HeadState::kWhole) << target << head.sentence;
    return head.request;
  };
  EXPECT_EQ(request("/a%20b+c/%zz%").path, "/a b+c/%zz%");
  EXPECT_EQ(request("/a%00%ff").path, std::string("/a\0\xff", 4));
  const Request paused =
      request("/pause?mode=keep&timeout_s=1.5&mode=wait&note=a+b%26c&empty=&bare");
  EXPECT_EQ(paused.path, "/pause");
  EXPECT_EQ(paused.parameter("mode"), "keep") << "the first one";
  EXPECT_EQ(paused.parameter("timeout_s"), "1.5");
  EXPECT_EQ(paused.parameter("note"), "a b&c");
  EXPECT_EQ(paused.parameter("empty"), "");
  EXPECT_EQ(paused.parameter("bare"), "");
  EXPECT_EQ(paused.parameter("Mode"), std::nullopt);
}

TEST(RequestHead, TellsWhatTheClientExpects) {
  EXPECT_TRUE(examine_head(kLine + "Expect: 100-Continue\r\n\r\n").expects_continue);
  EXPECT_FALSE(examine_head(kLine + "connection: Close\r\n\r\n").keeps_open);
  const RequestHead old = examine_head("GET / HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(old.request.http_1_0);
  EXPECT_FALSE(old.keeps_open);
  const Request twice = examine_head("GET / HTTP/1.1\r\nHost: a\r\nHOST: b\r\n\r\n").request;
  EXPECT_EQ(twice.count_headers("Host"), 2U);
  EXPECT_EQ(twice.header("Host"), "a");
}

struct Bad {
  std::string text;
  int status;
  std::string sentence;
};

TEST(RequestHead, RefusesWhatIsNoRequestAtOnce) {
  const std::vector<Bad> cases = {
      {std::string("\x16\x03\x01\x02\x00", 5), 400, "this is not an HTTP request"},
      {" GET / HTTP/1.1\r\n", 400, "this is not an HTTP request"},
      {"get / HTTP/1.1\r\n", 400, "this is not an HTTP request"},
      {"AVERYLONGMETHODNAME / HTTP/1.1", 400, "this is not an HTTP request"},
      {"GET / HTTP/1.1\nHost: x\n\n", 400, "bare LF"},
      {"GET  HTTP/1.1\r\n\r\n", 400, "the request is not valid HTTP/1.1"},
      {"GET /\tx HTTP/1.1\r\n\r\n", 400, "the request is not valid HTTP/1.1"},
      {"GET / HTTP/1.2\r\n\r\n", 400, "the request is not valid HTTP/1.1"},
      {"GET /\r\n\r\n", 400, "the request is not valid HTTP/1.1"},
      {kLine + "Host x\r\n\r\n", 400, "the header line 'Host x' has no name"},
      {kLine + ": x\r\n\r\n", 400, "has no name"},
      {kLine + "A: b\r\n c\r\n\r\n", 400, "has no name"},
      {kLine + std::string("A: b\0c\r\n\r\n", 10), 400, "has a NUL, a CR or a LF inside"},
      {kLine + "A: b\nContent-Length: 5\r\n\r\n", 400, "has a NUL, a CR or a LF inside"},
      {kLine + "Content-Length: -1\r\n\r\n", 400, "Content-Length is '-1'; expected one whole"},
      {kLine + "Content-Length: 5x\r\n\r\n", 400, "Content-Length is '5x'"},
      {kLine + "Content-Length:\r\n\r\n", 400, "Content-Length is ''"},
      {kLine + "Content-Length: 99999999999999999999\r\n\r\n", 400, "Content-Length is"},
      {kLine + "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400,
       "the request has another length header"},
      {kLine + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400, "Content-Length"},
      {kLine + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400,
       "Transfer-Encoding is given twice or together with"},
      {kLine + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501,
       "Transfer-Encoding is 'gzip, chunked'; expected chunked"},
      {kLine + "Content-Encoding: gzip\r\n\r\n", 415, "Content-Encoding is 'gzip'"},
      {"GET /" + std::string(kMaxHeadLineBytes, 'a'), 414,
       "the request line is longer than 8000 bytes"},
      {kLine + "A: " + std::string(kMaxHeadLineBytes, 'a') + "\r\n\r\n", 431,
       "a header line is longer than 8000 bytes: 'A: aaa"},
      {kLine + "A: " + std::string(kMaxHeadBytes, 'a'), 431,
       "the request's head is longer than 16384 bytes"},
  };
  for (const Bad& bad : cases) {
    const RequestHead head = examine_head(bad.text);
    EXPECT_EQ(head.state, HeadState::kRefused) << bad.text;
    EXPECT_EQ(head.status, bad.status) << bad.text;
    EXPECT_THAT(head.sentence, HasSubstr(bad.sentence)) << bad.text;
  }
}

}  // namespace
}  // namespace wsync::http
