// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Codec<T>: how a T becomes a schema::Value and a T again. Include this one for all that there are;
// structs of yours get one by FARSPAN_STRUCT. For a type that this does not suit:
//
//   template <> struct farspan::Codec<Uuid> {
//     static std::string type_name() { return "uuid"; }
//     static void write(schema::Value::Builder out, const Uuid& value, Writer& writer) {
//       Codec<std::string>::write(out, value.text(), writer);
//     }
//     static Uuid read(schema::Value::Reader in, Reader& reader) {
//       return Uuid(Codec<std::string>::read(in, reader));
//     }
//   };
//
// Both throw BadValue for what cannot travel, or is not what was expected; a call makes it an Error
// that says where: kInvalidArgument, or kCorrupt for bytes that no farspan writes.
//
// Threading: a value is written and read by one thread at a time; several do so at once.
#pragma once

#include <farspan/c10d/values/codec_list.h>    // IWYU pragma: export
#include <farspan/c10d/values/codec_map.h>     // IWYU pragma: export
#include <farspan/c10d/values/codec_simple.h>  // IWYU pragma: export
#include <farspan/c10d/values/codec_struct.h>  // IWYU pragma: export
#include <farspan/c10d/values/codec_tensor.h>  // IWYU pragma: export
#include <farspan/c10d/values/codec_tuple.h>   // IWYU pragma: export
