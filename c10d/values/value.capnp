# farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
#
# Values: arguments, results and whatever else travels by value. Bulk bytes (a tensor's elements, a
# long string) are no part of the message: they are segments beside it, named by their index.
#
# Append only: add members with the next number; never renumber, retype or reuse one.
@0xcc97153e94bfdc2f;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("farspan::schema");

# What one message carries.
struct Payload {
  values @0 :List(Value);
  tensors @1 :List(TensorDesc);
}

struct Value {
  union {
    none @0 :Void;              # void, an empty optional, std::monostate
    boolean @1 :Bool;
    int64 @2 :Int64;
    uint64 @3 :UInt64;          # only what int64 cannot hold
    float64 @4 :Float64;
    text @5 :Text;
    tensor @6 :UInt32;          # index into Payload.tensors
    list @7 :List(Value);
    map @8 :List(Entry);
    record @9 :List(Field);     # a struct, its fields by name
    array :group {              # numbers or bytes, packed, little-endian
      element @10 :Element;
      bytes @11 :Data;
    }
    bulk :group {               # the same, or text, in a segment of its own
      element @12 :Element;
      segment @13 :UInt32;
    }
    handle :group {             # opaque here; the room above that owns the kind reads it
      kind @14 :UInt16;         # 1: remote reference
      data @15 :Data;
    }
  }
}

struct Entry {
  key @0 :Value;
  value @1 :Value;
}

struct Field {
  name @0 :Text;
  value @1 :Value;
}

enum Element {
  byte @0;
  text @1;
  int16 @2;
  int32 @3;
  int64 @4;
  uint16 @5;
  uint32 @6;
  uint64 @7;
  float32 @8;
  float64 @9;
}

# A tensor without its bytes.
struct TensorDesc {
  dtype @0 :DType;
  layout @1 :Layout;
  requiresGrad @2 :Bool;
  coalesced @3 :Bool;           # sparseCoo only
  segment @4 :UInt32;           # strided with elements only: each segment belongs to one tensor
  sizes @5 :List(Int64);
  strides @6 :List(Int64);      # absent: row-major; else a permutation of it, without gaps
  parts @7 :List(TensorDesc);   # sparse only, see Layout; strided ones
  device @8 :Int16 = -1;        # of the receiver: which of its accelerators; -1: the CPU
  lent @9 :DeviceBytes;         # absent: its bytes are a segment
}

# Bytes in the memory of the sender's device, as another process of its host finds them
# (c10d/device/exports.h). The frame lends them: the receiver says when it has a copy.
struct DeviceBytes {
  device @0 :Int16;             # of the sender
  region @1 :UInt64;            # the allocation that they lie in: its id, the same for no other
  memory @2 :Data;              # its name, 64 bytes
  regionBytes @3 :UInt64;
  offset @4 :UInt64;            # of the bytes in it
  bytes @5 :UInt64;
  event @6 :UInt64;             # that comes when they have been written: its id
  written @7 :Data;             # its name, 64 bytes
  lending @8 :UInt64;           # which one it is of all that the sender ever lends: with the event
  regionBase @9 :UInt64;        # where the allocation lies in the sender's addresses
}

enum Layout {
  undefined @0;                 # at::Tensor(): no tensor at all
  strided @1;
  sparseCoo @2;                 # parts: indices, values
  sparseCsr @3;                 # parts: compressed indices, plain indices, values; so the next three
  sparseCsc @4;
  sparseBsr @5;
  sparseBsc @6;
}

enum DType {
  uint8 @0;
  int8 @1;
  int16 @2;
  int32 @3;
  int64 @4;
  uint16 @5;
  uint32 @6;
  uint64 @7;
  float16 @8;
  bfloat16 @9;
  float32 @10;
  float64 @11;
  complex32 @12;
  complex64 @13;
  complex128 @14;
  bool @15;
  float8e5m2 @16;
  float8e4m3fn @17;
  float8e5m2fnuz @18;
  float8e4m3fnuz @19;
  float8e8m0fnu @20;
  float4e2m1fnx2 @21;
  bits8 @22;
  bits16 @23;
  bits1x8 @24;
  bits2x4 @25;
  bits4x2 @26;
  int1 @27;
  int2 @28;
  int3 @29;
  int4 @30;
  int5 @31;
  int6 @32;
  int7 @33;
  uint1 @34;
  uint2 @35;
  uint3 @36;
  uint4 @37;
  uint5 @38;
  uint6 @39;
  uint7 @40;
}
