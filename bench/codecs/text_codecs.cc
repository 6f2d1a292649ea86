#include "bench/codecs/text_codecs.h"

#include <cstring>
#include <memory>

#include "bench/harness/repeat.h"
#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/transport/frame.h"
#include "shared/weights/checkpoint_index.h"
#include "shared/weights/example/model_shape.h"
#include "shared/weights/json_text.h"
#include "shared/weights/safetensors.h"

namespace wsync::bench {
namespace {

// number of tensors per file of a checkpoint in several files
constexpr unsigned kTensorsInFile = 1000;

// Texts that the rows of one model read.
struct Texts {
  HeaderText header;
  CheckpointIndex index;
  std::string index_text;
  Manifest manifest;
  Bytes layout;
};

std::span<const std::byte> as_bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

Result<std::shared_ptr<const Texts>> make_texts(std::string_view model) {
  const auto shape = find_model(model);
  if (!shape) return fail(shape.error().with_context("--model"));
  auto texts = std::make_shared<Texts>();
  const std::vector<TensorInfo> tensors = tensors_of(*shape);
  auto header = WSYNC_TRY(safetensors_header_text(tensors));
  texts->header = std::move(header);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    texts->index.weight_map[tensors[i].name] =
        fmt::format("model-{:05}.safetensors", i / kTensorsInFile + 1);
  auto manifest = WSYNC_TRY(Manifest::create(tensors));
  texts->manifest = std::move(manifest);
  texts->index.total_size = texts->manifest.total_bytes();
  texts->index_text = WSYNC_TRY(make_checkpoint_index(texts->index));
  ByteWriter writer;
  texts->manifest.encode(writer);
  texts->layout = std::move(writer).take();
  return texts;
}

Result<SafetensorsHeader> read_header_text(const Texts& texts) {
  return parse_safetensors_header(as_bytes_of(texts.header.json), texts.header.file_bytes);
}
Result<Manifest> read_layout(const Texts& texts) {
  ByteReader reader(texts.layout);
  return Manifest::decode(reader);
}

Result<> check_texts(const Texts& texts) {
  const auto header = read_header_text(texts);
  if (!header) return fail(header.error().with_context("safetensors header"));
  const auto index = parse_checkpoint_index(as_bytes_of(texts.index_text));
  if (!index) return fail(index.error().with_context("checkpoint index"));
  const auto layout = read_layout(texts);
  if (!layout) return fail(layout.error().with_context("layout"));
  std::vector<TensorInfo> tensors;
  for (const SafetensorsEntry& entry : header->tensors) tensors.push_back(entry.info);
  const auto from_header = Manifest::create(std::move(tensors));
  if (!from_header || *from_header != texts.manifest)
    return fail(ErrorCode::kInternal, "the parsed safetensors header has unexpected tensors");
  if (index->weight_map != texts.index.weight_map || index->total_size != texts.index.total_size)
    return fail(ErrorCode::kInternal, "the parsed checkpoint index differs from the original");
  if (*layout != texts.manifest)
    return fail(ErrorCode::kInternal, "the decoded layout differs from the original");
  return {};
}

double mib_per_s(std::size_t bytes, double ns) {
  return static_cast<double>(bytes) / static_cast<double>(limits::kMiB) / (ns * 1e-9);
}

template <class Work>
Row repeated_row(Figure figure, Work work) {
  const std::uint64_t bytes = figure.bytes;
  return {.figures = {std::move(figure)},
          .measure = [work = std::move(work), bytes,
                      times = std::uint64_t{0}]() mutable -> Result<std::vector<double>> {
            return std::vector<double>{mib_per_s(bytes, ns_per_call(work, times))};
          }};
}

}  // namespace

Result<HeaderText> safetensors_header_text(std::span<const TensorInfo> tensors) {
  HeaderText text{.json = "{", .file_bytes = 0};
  std::uint64_t at = 0;
  for (const TensorInfo& tensor : tensors) {
    const auto bytes = WSYNC_TRY(tensor.byte_size());
    const auto name = WSYNC_TRY(json_string(tensor.name));
    text.json +=
        fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                    at == 0 && text.json.size() == 1 ? "" : ",", name, dtype_name(tensor.dtype),
                    fmt::join(tensor.shape, ","), at, at + bytes);
    at += bytes;
  }
  text.json += "}";
  text.file_bytes = sizeof(std::uint64_t) + text.json.size() + at;
  return text;
}

Result<> add_text_codec_rows(std::string_view model, std::vector<Row>& rows) {
  const auto made = WSYNC_TRY(make_texts(model));
  const std::shared_ptr<const Texts> texts = made;
  WSYNC_TRY(check_texts(*texts));
  const auto add = [&](const char* name, const char* copied, std::span<const std::byte> bytes,
                       auto work) {
    rows.push_back(repeated_row({.name = name,
                                 .variant = "",
                                 .bytes = bytes.size(),
                                 .against = case_name("memcpy of a text", copied)},
                                std::move(work)));
  };
  const auto add_memcpy = [&](const char* copied, std::span<const std::byte> bytes) {
    const auto to = std::make_shared<Bytes>(bytes.size());
    rows.push_back(repeated_row(
        {.name = "memcpy of a text", .variant = copied, .bytes = bytes.size(), .against = {}},
        [texts, bytes, to] {
          std::memcpy(to->data(), bytes.data(), bytes.size());
          keep(*to);
        }));
  };
  const auto header = as_bytes_of(texts->header.json);
  const auto index = as_bytes_of(texts->index_text);
  add_memcpy("safetensors header", header);
  add("read safetensors header", "safetensors header", header,
      [texts] { keep(read_header_text(*texts)); });
  add_memcpy("checkpoint index", index);
  add("read checkpoint index", "checkpoint index", index,
      [texts] { keep(parse_checkpoint_index(as_bytes_of(texts->index_text))); });
  add("write checkpoint index", "checkpoint index", index,
      [texts] { keep(make_checkpoint_index(texts->index)); });
  add_memcpy("layout", texts->layout);
  add("encode layout", "layout", texts->layout, [texts] {
    ByteWriter writer;
    texts->manifest.encode(writer);
    keep(writer.buffer());
  });
  add("decode layout", "layout", texts->layout, [texts] { keep(read_layout(*texts)); });
  const auto frame = std::make_shared<const std::array<std::byte, transport::kFrameBytes>>(
      transport::encode_frame({.type = transport::FrameType::kGet, .key = {}, .bytes = 1}));
  if (!transport::decode_frame(*frame))
    return fail(ErrorCode::kInternal, "the frame header cannot be decoded");
  add_memcpy("frame header", *frame);
  add("frame header there and back", "frame header", *frame, [frame] {
    const auto decoded = transport::decode_frame(*frame);
    keep(transport::encode_frame(*decoded));
  });
  return {};
}

}  // namespace wsync::bench
