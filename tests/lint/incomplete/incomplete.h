#pragma once

std::vector<int> numbers();
