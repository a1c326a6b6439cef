#include <farspan/c10d/device/device_map.h>

#include <farspan/c10d/base/error.h>

namespace farspan::device {
namespace {

// As one writes it in a program.
std::string code(std::optional<Place> place) {
  if (!place) return "cuda(..)";
  return *place == cpu ? "cpu" : "cuda(" + std::to_string(place->device) + ")";
}

void check_device(const std::string& where, Place place, int devices) {
  if (place == cpu || (place.device >= 0 && place.device < devices)) return;
  throw Error(Code::kInvalidArgument, place.text() + " is in the device map, and " + where +
                                          " has " +
                                          (devices == 0 ? "no" : std::to_string(devices)) +
                                          (devices == 1 ? " device" : " devices"))
      .advice("look at CUDA_VISIBLE_DEVICES there");
}

}  // namespace

std::string Place::text() const {
  return device == kCpu ? "cpu" : "cuda:" + std::to_string(device);
}

DeviceMap::DeviceMap(std::initializer_list<std::pair<Place, Place>> entries) {
  for (const auto& [here, there] : entries) set(here, there);
}

void DeviceMap::set(Place here, Place there) {
  if (there_.count(here) > 0) {
    throw Error(Code::kInvalidArgument, here.text() + " is mapped twice: to " +
                                            there_.at(here).text() + " and to " + there.text())
        .advice("name each device once");
  }
  if (here_.count(there) > 0) {
    throw Error(Code::kInvalidArgument, here_.at(there).text() + " and " + here.text() +
                                            " are both mapped to " + there.text() +
                                            ", so that nobody knows where its replies belong")
        .advice("map each device to another one");
  }
  there_.emplace(here, there);
  here_.emplace(there, here);
}

void DeviceMap::check(const std::string& worker, int devices_here, int devices_there) const {
  for (const auto& [here, there] : there_) {
    check_device("this worker", here, devices_here);
    check_device("worker '" + worker + "'", there, devices_there);
  }
}

std::optional<Place> DeviceMap::find(const std::map<Place, Place>& entries, Place place) {
  const auto found = entries.find(place);
  if (found != entries.end()) return found->second;
  if (entries.empty() || place == cpu) return place;
  return std::nullopt;
}

Place DeviceMap::there(const std::string& worker, Place here) const {
  if (const auto place = find(there_, here)) return *place;
  throw Error(Code::kInvalidArgument,
              "a tensor on " + here.text() + ", for which the device map has no entry")
      .worker(worker)
      .advice("add, with the device there: " + line_to_add(worker, here, {}));
}

Place DeviceMap::here(const std::string& worker, Place there) const {
  if (const auto place = find(here_, there)) return *place;
  throw Error(Code::kInvalidArgument,
              "a tensor from " + there.text() + " there, for which the device map has no entry")
      .worker(worker)
      .advice("add, with the device here: " + line_to_add(worker, {}, there));
}

std::string line_to_add(const std::string& worker, std::optional<Place> here,
                        std::optional<Place> there) {
  return "options.device_maps[\"" + worker + "\"].set(" + code(here) + ", " + code(there) + ");";
}

}  // namespace farspan::device
