"""Do several starts make classifiers that differ?"""
