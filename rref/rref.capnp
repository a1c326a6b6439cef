# farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
#
# How the names and messages of remote references travel; PROTOCOL.md says what they mean. Append
# only: add fields with the next number; never renumber, retype or reuse one.
@0xe7cc729c4687abd1;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("farspan::rref::schema");

struct Run {
  rank @0 :Int32;
  instance @1 :UInt64;
}

struct RRef {
  creator @0 :Run;
  owner @1 :Run;
  serial @2 :UInt64;
}

struct Fork {
  parent @0 :Run;
  serial @1 :UInt64;
}

# The data of a Value.handle of kind 1: a reference under way in arguments or a result.
struct Reference {
  rref @0 :RRef;
  fork @1 :Fork;
  what @2 :Text;
}

# Call.subject of kinds REMOTE CALL (made: the reference to make; self: what a method runs on),
# RREF CALL and RREF FETCH (self alone). A fetch may say which of the asker's devices the value is to
# arrive on: -1, the processor's memory; -2, where the device map says.
struct Subject {
  made @0 :Reference;
  self @1 :RRef;
  place @2 :Int16 = -2;
}

# Kind RREF CONTROL.
struct Control {
  from @0 :Run;
  to @1 :Run;
  base @2 :UInt64;
  first @3 :UInt64;
  items @4 :List(Item);
  ack @5 :UInt64;
  refused @6 :List(Refused);
  probe @7 :Bool;
  fence @8 :Bool;
}

struct Item {
  kind @0 :UInt8;
  rref @1 :RRef;
  fork @2 :Fork;
}

struct Refused {
  sequence @0 :UInt64;
  reason @1 :UInt8;
}
