// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// FARSPAN_FOR_EACH(macro, data, a, b, ...): macro(data, a), macro(data, b), ... separated by
// commas, for up to 256 arguments.
#pragma once

#define FARSPAN_FOR_EACH(macro, data, ...) \
  __VA_OPT__(FARSPAN_EXPAND(FARSPAN_FOR_EACH_STEP(macro, data, __VA_ARGS__)))

#define FARSPAN_FOR_EACH_STEP(macro, data, first, ...) \
  macro(data, first) __VA_OPT__(, FARSPAN_FOR_EACH_AGAIN FARSPAN_PARENS(macro, data, __VA_ARGS__))
#define FARSPAN_FOR_EACH_AGAIN() FARSPAN_FOR_EACH_STEP
#define FARSPAN_PARENS ()

// Each level has the preprocessor look four times more.
#define FARSPAN_EXPAND(...) \
  FARSPAN_EXPAND_3(FARSPAN_EXPAND_3(FARSPAN_EXPAND_3(FARSPAN_EXPAND_3(__VA_ARGS__))))
#define FARSPAN_EXPAND_3(...) \
  FARSPAN_EXPAND_2(FARSPAN_EXPAND_2(FARSPAN_EXPAND_2(FARSPAN_EXPAND_2(__VA_ARGS__))))
#define FARSPAN_EXPAND_2(...) \
  FARSPAN_EXPAND_1(FARSPAN_EXPAND_1(FARSPAN_EXPAND_1(FARSPAN_EXPAND_1(__VA_ARGS__))))
#define FARSPAN_EXPAND_1(...) \
  FARSPAN_EXPAND_0(FARSPAN_EXPAND_0(FARSPAN_EXPAND_0(FARSPAN_EXPAND_0(__VA_ARGS__))))
#define FARSPAN_EXPAND_0(...) __VA_ARGS__
