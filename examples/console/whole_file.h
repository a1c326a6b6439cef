// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// write_whole_file: a file that is there with all of its text, or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace console {

// Replaces `file`, or makes it, with the folders it needs. The text has no name until it is
// complete and on the disk, so a program that is killed meanwhile leaves the old file, if there was
// one. Then a neighbour, FILE.part, takes its place; where the file system has no nameless files,
// the text is written there. One process at a time writes a file.
//   throws  farspan::Error kUnavailable: the file cannot be written, and why
void write_whole_file(const std::filesystem::path& file, std::string_view text);

// Why write_whole_file() would fail, as far as can be seen without writing; empty if it would not.
std::string why_not_written(const std::filesystem::path& file);

}  // namespace console
