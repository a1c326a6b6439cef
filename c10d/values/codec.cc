#include <farspan/c10d/values/codec.h>

#include <cstring>

namespace farspan {

void Codec<std::string>::write(schema::Value::Builder out, const std::string& value,
                               Writer& writer) {
  if (value.size() <= kMaxInlineBytes) {
    out.setText(capnp::Text::Reader(value.data(), value.size()));
    return;
  }
  auto bulk = out.initBulk();
  bulk.setElement(schema::Element::TEXT);
  bulk.setSegment(writer.add_segment(std::as_bytes(std::span(value))));
}

std::string Codec<std::string>::read(schema::Value::Reader in, Reader& reader) {
  if (in.isText()) {
    const capnp::Text::Reader text = in.getText();
    return std::string(text.begin(), text.size());
  }
  if (in.isBulk() && in.getBulk().getElement() == schema::Element::TEXT) {
    const auto bytes = reader.segment(in.getBulk().getSegment());
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  throw_mismatch("string", in);
}

namespace detail {

void write_packed(schema::Value::Builder out, schema::Element element,
                  std::span<const std::byte> bytes, Writer& writer) {
  if (bytes.size() <= kMaxInlineBytes) {
    auto array = out.initArray();
    array.setElement(element);
    array.setBytes({reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()});
  } else {
    auto bulk = out.initBulk();
    bulk.setElement(element);
    bulk.setSegment(writer.add_segment(bytes));
  }
}

std::span<const std::byte> read_packed(schema::Value::Reader in, schema::Element element,
                                       size_t width, TypeName expected, Reader& reader) {
  std::span<const std::byte> bytes;
  if (in.isArray() && in.getArray().getElement() == element) {
    const capnp::Data::Reader data = in.getArray().getBytes();
    bytes = std::as_bytes(std::span(data.begin(), data.size()));
  } else if (in.isBulk() && in.getBulk().getElement() == element) {
    bytes = reader.segment(in.getBulk().getSegment());
  } else {
    throw_mismatch(expected(), in);
  }
  if (bytes.size() % width != 0) {
    throw BadValue(Code::kCorrupt, std::to_string(bytes.size()) + " bytes for elements of " +
                                       std::to_string(width));
  }
  return bytes;
}

capnp::List<schema::Value>::Reader elements_of(schema::Value::Reader in, TypeName expected,
                                               int64_t size) {
  if (!in.isList()) throw_mismatch(expected(), in);
  const auto list = in.getList();
  if (size >= 0 && list.size() != size) {
    throw BadValue(Code::kInvalidArgument,
                   "expected " + expected() + ", got a list of " + std::to_string(list.size()));
  }
  return list;
}

void match_fields(schema::Value::Reader in, TypeName type, std::span<const std::string_view> names,
                  std::span<schema::Value::Reader> found) {
  if (!in.isRecord()) throw_mismatch(type(), in);
  const auto fields = in.getRecord();
  std::vector<bool> seen(names.size());
  for (unsigned i = 0; i < fields.size(); ++i) {
    const capnp::Text::Reader text = fields[i].getName();
    const std::string_view name(text.begin(), text.size());
    // In order, as a rule.
    size_t at = i < names.size() && names[i] == name ? i : 0;
    while (at < names.size() && names[at] != name) ++at;
    if (at == names.size() || seen[at]) {
      throw BadValue(Code::kInvalidArgument,
                     type() + (at == names.size() ? " has no field '" : " got twice '") +
                         std::string(name) + "'");
    }
    seen[at] = true;
    found[at] = fields[i].getValue();
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!seen[i]) {
      throw BadValue(Code::kInvalidArgument,
                     type() + " lacks its field '" + std::string(names[i]) + "'");
    }
  }
}

}  // namespace detail
}  // namespace farspan
