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
  EXPECT_EQ(head.text, whole);
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
  EXPECT_EQ(head.text, "GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(examine_head("\r").state, HeadState::kPartial);
  std::string endless;
  while (endless.size() <= kMaxHeadBytes) endless += "\r\n";
  EXPECT_EQ(examine_head(endless).status, 431);
}

TEST(RequestHead, AsksForWholeAndPlainAnswers) {
  const RequestHead head = examine_head(
      "GET / HTTP/1.1\r\nRange: bytes=0-1\r\naccept-encoding: br\r\nAccept: */*\r\n\r\n");
  EXPECT_EQ(head.text, "GET / HTTP/1.1\r\nAccept: */*\r\n\r\n");
}

struct Bad {
  std::string text;
  int status;
  std::string sentence;
};

TEST(RequestHead, RefusesWhatIsNoRequestAtOnce) {
  const std::vector<Bad> cases = {
      {std::string("\x16\x03\x01\x02\x00", 5), 400, "this is no HTTP request"},
      {" GET / HTTP/1.1\r\n", 400, "this is no HTTP request"},
      {"get / HTTP/1.1\r\n", 400, "this is no HTTP request"},
      {"AVERYLONGMETHODNAME / HTTP/1.1", 400, "this is no HTTP request"},
      {"GET / HTTP/1.1\nHost: x\n\n", 400, "bare LF"},
      {kLine + "Host x\r\n\r\n", 400, "the header line 'Host x' has no name"},
      {kLine + ": x\r\n\r\n", 400, "has no name"},
      {kLine + "A: b\r\n c\r\n\r\n", 400, "has no name"},
      {kLine + std::string("A: b\0c\r\n\r\n", 10), 400, "has a NUL, a CR or a LF inside"},
      {kLine + "A: b\nContent-Length: 5\r\n\r\n", 400, "has a NUL, a CR or a LF inside"},
      {kLine + "Content-Length: -1\r\n\r\n", 400, "Content-Length is '-1'; expected one whole"},
      {kLine + "Content-Length: 5x\r\n\r\n", 400, "Content-Length is '5x'"},
      {kLine + "Content-Length:\r\n\r\n", 400, "Content-Length is ''"},
      {kLine + "Content-Length: 99999999999999999999\r\n\r\n", 400, "Content-Length is"},
      {kLine + "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400, "not the only one"},
      {kLine + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400, "Content-Length"},
      {kLine + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400,
       "Transfer-Encoding is there twice or beside"},
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
