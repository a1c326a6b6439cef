// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Codecs of std::map, set, and their unordered kin. What they throw, and threading: codec.h.
#pragma once

#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <farspan/c10d/values/codec_list.h>

namespace farspan {
namespace detail {

template <class Map, class K, class V>
struct MapCodec {
  static std::string type_name() {
    return "map<" + Codec<K>::type_name() + "," + Codec<V>::type_name() + ">";
  }
  static void write(schema::Value::Builder out, const Map& values, Writer& writer) {
    const Writer::Nest nest(writer);
    auto entries = out.initMap(static_cast<unsigned>(values.size()));
    unsigned i = 0;
    for (const auto& entry : values) {
      at_index(i, [&] {
        Codec<K>::write(entries[i].initKey(), entry.first, writer);
        Codec<V>::write(entries[i].initValue(), entry.second, writer);
      });
      ++i;
    }
  }
  static Map read(schema::Value::Reader in, Reader& reader) {
    if (!in.isMap()) throw_mismatch(type_name(), in);
    const auto entries = in.getMap();
    Map values;
    for (unsigned i = 0; i < entries.size(); ++i) {
      at_index(i, [&] {
        K key = Codec<K>::read(entries[i].getKey(), reader);
        V value = Codec<V>::read(entries[i].getValue(), reader);
        if (!values.emplace(std::move(key), std::move(value)).second) {
          throw BadValue(Code::kCorrupt, "a key that was there before");
        }
      });
    }
    return values;
  }
};

template <class Set, class T>
struct SetCodec {
  static std::string type_name() { return "set<" + Codec<T>::type_name() + ">"; }
  static void write(schema::Value::Builder out, const Set& values, Writer& writer) {
    write_elements<T>(out, values, writer);
  }
  static Set read(schema::Value::Reader in, Reader& reader) {
    const auto list = elements_of(in, type_name);
    Set values;
    for (unsigned i = 0; i < list.size(); ++i) {
      at_index(i, [&] {
        if (!values.insert(Codec<T>::read(list[i], reader)).second) {
          throw BadValue(Code::kCorrupt, "an element that was there before");
        }
      });
    }
    return values;
  }
};

}  // namespace detail

template <Encodable K, Encodable V, class C, class A>
struct Codec<std::map<K, V, C, A>> : detail::MapCodec<std::map<K, V, C, A>, K, V> {};

template <Encodable K, Encodable V, class H, class E, class A>
struct Codec<std::unordered_map<K, V, H, E, A>>
    : detail::MapCodec<std::unordered_map<K, V, H, E, A>, K, V> {};

template <Encodable T, class C, class A>
struct Codec<std::set<T, C, A>> : detail::SetCodec<std::set<T, C, A>, T> {};

template <Encodable T, class H, class E, class A>
struct Codec<std::unordered_set<T, H, E, A>> : detail::SetCodec<std::unordered_set<T, H, E, A>, T> {
};

}  // namespace farspan
